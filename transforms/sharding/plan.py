"""The sharding plan: everything that one wrap (FSDP1 or DDP) becomes, before it is written as statements."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ..rule import Need
from ..text.imports import spelling
from ..text.patches import Old, Part
from ..view import FileView

_WIDTH = 100
_KEYWORDS = ("mesh", "reshard_after_forward", "mp_policy", "offload_policy", "ignored_params")
"""Keywords of ``fully_shard`` in the order of its signature."""

FULLY_SHARD = "torch.distributed.fsdp.fully_shard"


class Name(Enum):
    """A name in a plan that is settled only where the plan is placed."""

    MODEL = "model"
    UNIT = "module"


MODEL, UNIT = Name.MODEL, Name.UNIT

Code = tuple[Part | Name, ...]
"""Python text with pieces of the old text and names to be filled in; a line break stands without indentation."""


def code(*parts: Part | Name | Code) -> Code:
    """Joins texts, old pieces, names and other code."""
    joined: list[Part | Name] = []
    for part in parts:
        joined.extend(part if isinstance(part, tuple) else (part,))
    return tuple(joined)


@dataclass(frozen=True)
class Units:
    """Which submodules become units of their own, and what their ``fully_shard`` call takes besides.

    ``condition`` is an expression over UNIT. ``modules`` is an iterable over MODEL, children before parents.
    ``skip_root`` is set where the model itself might meet the condition: sharding it twice is an error.
    """

    condition: Code | None
    modules: Code = ("reversed(list(", MODEL, ".modules()))")
    skip_root: bool = True
    ahead: Code | None = None
    """What is asked in front of a condition that answers with arguments."""
    answers: bool = False
    """Whether the condition may also come out as a dictionary: arguments for that one unit."""
    asks_all: bool = False
    """Whether the condition is asked about every module before the first is sharded, the model itself too."""


@dataclass
class ShardingPlan:
    """One wrap: ``call`` in ``view`` is the constructor call, ``model`` the expression that it wraps.

    Arguments are the keywords of ``fully_shard``: ``arguments`` for every call, ``unit_arguments`` and
    ``root_arguments`` for those of the units or the root alone. ``before`` and ``after`` are whole statements
    around the calls. ``needs`` are the imports that the statements take.
    """

    view: FileView
    call: ast.Call
    model: ast.expr | None
    units: Units | None = None
    arguments: dict[str, Code] = field(default_factory=dict)
    unit_arguments: dict[str, Code] = field(default_factory=dict)
    root_arguments: dict[str, Code] = field(default_factory=dict)
    before: list[Code] = field(default_factory=list)
    after: list[Code] = field(default_factory=list)
    needs: list[Need] = field(default_factory=list)
    moved_up: list[ast.stmt] = field(default_factory=list)
    """Later statements of the same block that go before the sharding (activation checkpointing)."""
    function: str = FULLY_SHARD
    extras: list[Code] = field(default_factory=list)
    """Last arguments of every call, ``**kwargs``."""
    named: set[str] = field(default_factory=set)
    """Arguments that get a local name of their own even where one call alone takes them."""
    sharding_call: Code | None = None
    """In place of a loop over units: a call that shards them, open for the arguments of ``fully_shard``."""
    sharding_condition: Code | None = None
    first_units: list[tuple[Code, Code]] = field(default_factory=list)
    """Units before all others that have a policy of their own: a condition over UNIT, and their ``mp_policy``."""

    known: set[str] = field(default_factory=set)
    """Statements that stand in front of the wrap already, by their text."""

    @property
    def has_units(self) -> bool:
        """Whether submodules are units of their own."""
        return self.units is not None or self.sharding_call is not None

    def name(self, symbol: str) -> str:
        """How the statements spell a symbol; notes the import."""
        self.needs.append(Need(self.view, symbol, self.call))
        return spelling(self.view, symbol, self.call)

    def statements(self) -> list[Code]:
        """The plan as statements over MODEL: preparation, units from the leaves up, the root last."""
        shard = self.name(self.function)
        loop = _first_free(self.view, self.call, ("module", "submodule", "unit"))
        found = list(self.before)
        unit = {**self.arguments, **self.unit_arguments}
        root = {**self.arguments, **self.root_arguments}
        found.extend(self._hoist(unit, root))
        for condition, policy in self.first_units:
            body = self._call(shard, UNIT, {**unit, "mp_policy": policy}, 8)
            found.append(code("for ", UNIT, " in ", MODEL, ".modules():\n    if ", condition, ":\n        ", body))
        if self.units is not None and self.units.asks_all:
            found.extend(self._asking_loop(shard, self.units, unit))
        elif self.units is not None and self.units.answers:
            found.extend(self._answering_loop(shard, self.units, unit))
        elif self.units is not None:
            body = self._call(shard, UNIT, unit, 8)
            head = code("for ", UNIT, " in ", self.units.modules, ":\n    ")
            condition = self._condition(self.units)
            if condition is not None:
                head = code(head, "if ", condition, ":\n        ")
            else:
                body = self._call(shard, UNIT, unit, 4)
            found.append(code(head, body))
        if self.sharding_call is not None:
            found.append(self._unit_call(self.sharding_call, unit))
        found.append(self._call(shard, MODEL, root, 0))
        found.extend(self.after)
        found = [statement for statement in found if plain_text(self.view, statement) not in self.known]
        return [fill(statement, {UNIT: loop}) for statement in found]

    def _answering_loop(self, shard: str, units: Units, arguments: dict[str, Code]) -> list[Code]:
        """A loop whose condition gives some units arguments of their own, before those of all units."""
        answer = self.view.free_name(self.call, "answer")
        found, call = self._answered_call(shard, answer, arguments)
        tests = self._tests(units) or [("True",)]
        condition = code(*_between(" and ", tests))
        if len(self.view.indent(self.call)) + len(answer) + 7 + length(self.view, condition) > _WIDTH:
            condition = code("(\n        ", *_between("\n        and ", tests), "\n    )")
        head = code("for ", UNIT, " in ", units.modules, f":\n    {answer} = ", condition)
        return [*found, code(head, f"\n    if {answer}:\n        ", call)]

    def _asking_loop(self, shard: str, units: Units, arguments: dict[str, Code]) -> list[Code]:
        """A loop over the answers about all modules, from the model down, as FSDP1 asked for them."""
        assert units.condition is not None
        answer, answers = (self.view.free_name(self.call, name) for name in ("answer", "answers"))
        asked: list[Code] = [code("(", UNIT, ", ", units.condition, ")"), code("for ", UNIT, " in ", MODEL, ".modules()")]
        if units.ahead is not None:
            asked.append(code("if ", units.ahead))
        line = code(f"{answers} = [", *_between(" ", asked), "]")
        if len(self.view.indent(self.call)) + length(self.view, line) > _WIDTH:
            line = code(f"{answers} = [\n    ", *_between("\n    ", asked), "\n]")
        found, call = (
            self._answered_call(shard, answer, arguments) if units.answers else ([], self._call(shard, UNIT, arguments, 8))
        )
        root = code(" and ", UNIT, " is not ", MODEL) if units.skip_root else ()
        head = code("for ", UNIT, f", {answer} in reversed({answers}):\n    if {answer}", root, ":\n        ")
        return [*found, line, code(head, call)]

    def _answered_call(self, shard: str, answer: str, arguments: dict[str, Code]) -> tuple[list[Code], Code]:
        """The call for a unit whose answer may be arguments, and what stands before the loop for it."""
        listed = [code(f'"{keyword}": ', arguments[keyword]) for keyword in _KEYWORDS if keyword in arguments]
        listed.extend(self.extras)
        if not listed:
            return [], code(shard, "(", UNIT, f", **({answer} if isinstance({answer}, dict) else {{}}))")
        given = self.view.free_name(self.call, "arguments")
        line = code(f"{given} = {{", *_between(", ", listed), "}")
        if len(self.view.indent(self.call)) + length(self.view, line) > _WIDTH:
            line = code(f"{given} = {{", *(code("\n    ", item, ",") for item in listed), "\n}")
        return [line], code(shard, "(", UNIT, f", **({given} | {answer} if isinstance({answer}, dict) else {given}))")

    def _unit_call(self, call: Code, arguments: dict[str, Code]) -> Code:
        listed = [
            code(", ", f"{keyword}=", arguments[keyword]) for keyword in _KEYWORDS if keyword in arguments
        ]
        listed.extend(code(", ", extra) for extra in self.extras)
        complete = code(call, *listed, ")")
        if self.sharding_condition is None:
            return complete
        return code("if ", self.sharding_condition, ":\n    ", complete)

    def _condition(self, units: Units) -> Code | None:
        tests = self._tests(units)
        return code(*_between(" and ", tests)) if tests else None

    def _tests(self, units: Units) -> list[Code]:
        """What decides whether a module becomes a unit, in the order in which it is asked."""
        found: list[Code] = [code(UNIT, " is not ", MODEL)] if units.skip_root else []
        found.extend(test for test in (units.ahead, units.condition) if test is not None)
        return found

    def _hoist(self, unit: dict[str, Code], root: dict[str, Code]) -> list[Code]:
        """Local names for what the loop or several calls would otherwise compute again, and for long values."""
        found: list[Code] = []
        for keyword in _KEYWORDS:
            value = unit.get(keyword)
            if value is None or is_simple(self.view, value):
                continue
            shared = root.get(keyword) == value
            if not self.has_units and not (shared and (keyword in self.named or is_choice(self.view, value))):
                continue
            wanted = keyword if shared or keyword not in root else f"unit_{keyword}"
            local = self.view.free_name(self.call, wanted)
            found.append(code(local, " = ", value))
            unit[keyword] = (local,)
            if shared:
                root[keyword] = (local,)
        return found

    def _call(self, shard: str, target: Name, arguments: dict[str, Code], depth: int) -> Code:
        """One ``fully_shard`` call on as few lines as it fits on; ``depth`` is its indentation."""
        listed: list[Code] = [(target,)]
        listed.extend(
            code(f"{keyword}=", arguments[keyword]) for keyword in _KEYWORDS if keyword in arguments
        )
        listed.extend(self.extras)
        line = code(shard, "(", *_between(", ", listed), ")")
        if depth + len(self.view.indent(self.call)) + length(self.view, line) <= _WIDTH:
            return line
        inner = "\n" + " " * (depth + 4)
        joined = code(*_between(", ", listed))
        if depth + 4 + len(self.view.indent(self.call)) + length(self.view, joined) <= _WIDTH:
            return code(shard, "(", inner, joined, "\n" + " " * depth, ")")
        return code(shard, "(", *(code(inner, item, ",") for item in listed), "\n" + " " * depth, ")")


def fill(statement: Code, names: dict[Name, str]) -> Code:
    """The code with some of its open names settled."""
    return tuple(names.get(part, part) if isinstance(part, Name) else part for part in statement)


def written(statements: Sequence[Code], model: str, indent: str) -> list[Part]:
    """Statements as parts of a patch that starts where a statement starts: no newline at the end."""
    parts: list[Part] = []
    for number, statement in enumerate(statements):
        if number:
            _extend(parts, "\n" + indent if statement else "\n")
        for part in fill(statement, {MODEL: model}):
            text = part.replace("\n", "\n" + indent) if isinstance(part, str) else part
            if "\t" in indent and isinstance(text, str):
                text = _STEPS.sub(lambda steps: "\t" * (len(steps.group()) // 4), text)
            _extend(parts, text)  # pyright: ignore[reportArgumentType]
    parts = [_BLANK_LINE.sub("\n", part) if isinstance(part, str) else part for part in parts]
    return parts if indent else [_AROUND_FUNCTION.sub("\n\n\n", part) if isinstance(part, str) else part for part in parts]


def _extend(parts: list[Part], part: Part) -> None:
    """Adds a part; text goes on in the text before it."""
    last = parts[-1] if parts else None
    if isinstance(part, str) and isinstance(last, str):
        parts[-1] = last + part
    else:
        parts.append(part)


_STEPS = re.compile(r"(?<=[\n\t]) {4,}")
_AROUND_FUNCTION = re.compile(r"\n\n(?=def )|(?<=\))\n\n(?=\w+\.register_forward_pre_hook)")
"""Where a function of a module begins or ends."""
_BLANK_LINE = re.compile(r"\n[ \t]+(?=\n)")


def listed_call(view: FileView, function: str, arguments: Sequence[Code], column: int) -> Code:
    """A call on one line where it fits behind ``column``, else with an argument a line."""
    line = code(f"{function}(", *_between(", ", arguments), ")")
    if column + length(view, line) <= _WIDTH:
        return line
    return code(f"{function}(", *(code("\n    ", argument, ",") for argument in arguments), "\n)")


def length(view: FileView, line: Code) -> int:
    """Characters of a line of code, names taken at their usual length."""
    return sum(len(_text(view, part)) for part in line)


def plain_text(view: FileView, line: Code) -> str:
    """Code as text, old pieces unpatched."""
    return "".join(_text(view, part) for part in line)


def is_simple(view: FileView, value: Code) -> bool:
    """Whether a value may be written twice: a constant, a name, an attribute path."""
    try:
        node = ast.parse(plain_text(view, value).strip(), mode="eval").body
    except SyntaxError:
        return False
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, (ast.Name, ast.Constant))


def is_choice(view: FileView, value: Code) -> bool:
    """Whether a value is chosen between others, ``a or b``, or spreads over lines."""
    text = plain_text(view, value).strip()
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:
        return False
    return "\n" in text or isinstance(node, (ast.IfExp, ast.BoolOp))


def _text(view: FileView, part: Part | Name) -> str:
    if isinstance(part, Old):
        return view.source.text[part.start : part.end]
    return part.value if isinstance(part, Name) else part


def _between(separator: str, items: Iterable[Code]) -> list[Part | Name | Code]:
    found: list[Part | Name | Code] = []
    for item in items:
        if found:
            found.append(separator)
        found.append(item)
    return found


def _first_free(view: FileView, node: ast.AST, names: Sequence[str]) -> str:
    """The first of the names that the function around a node does not use; parameters of lambdas do not count."""
    scope = view.function(node)
    taken: set[str] = set()
    pending: list[ast.AST] = [scope or view.tree]
    while pending:
        current = pending.pop()
        if isinstance(current, ast.Lambda):
            own = {a.arg for a in ast.walk(current.args) if isinstance(a, ast.arg)}
            taken |= view.names_in(current.body) - own
            continue
        if isinstance(current, ast.Name):
            taken.add(current.id)
        elif isinstance(current, ast.arg):
            taken.add(current.arg)
        pending.extend(ast.iter_child_nodes(current))
    return next((name for name in names if name not in taken), view.free_name(node, names[0]))


def deeper(statement: Code) -> Code:
    """Code as part of a block: its further lines go one step in."""
    return tuple(part.replace("\n", "\n    ") if isinstance(part, str) else part for part in statement)
