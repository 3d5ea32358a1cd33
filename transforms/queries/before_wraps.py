"""Places that surely run before anything in the repository is wrapped: every model is plain there, wherever it comes from.

The order of execution is read off the text: from the entry points through all calls that lead to a place. A way that is
not seen whole (a function that is handed on, called by its name, or run by a class of somebody else) proves nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cached_property

from ..facts.facts import NOTHING
from ..flow.values import ClassValue, FunctionValue, Instance, Opaque, Unknown
from .file import File
from .program import Program
from .programs import Programs

_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.comprehension, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
HARMLESS_BASES = ("torch.nn.Module", "builtins.object", "abc.", "typing.", "enum.", "torch.utils.data.")
"""Bases that call no methods of their own accord but those in ``CALLED_BY_TORCH``."""
CALLED_BY_TORCH = frozenset(
    {"forward", "state_dict", "load_state_dict", "train", "eval", "to", "apply", "parameters", "named_parameters", "modules",
     "children", "zero_grad", "extra_repr", "reset_parameters", "get_extra_state", "set_extra_state", "share_memory"}
)  # fmt: skip
_MOST_CALLERS = 24

Place = tuple[File, ast.AST]


class BeforeWraps:
    """Whether places come before all wraps. ``wraps`` are the places where models are wrapped, or wrappers handed on."""

    def __init__(self, program: Program, programs: Programs, wraps: Iterable[Place]) -> None:
        self.program = program
        self.programs = programs
        self._unordered: set[str] = set()
        """Entry points of programs with a wrap to which no call is seen to lead."""
        self._starts: dict[FunctionValue, bool] = {}
        self._wrapping = self._spread(wraps)

    def holds(self, file: File, node: ast.AST) -> bool:
        """Whether a place is surely reached only while nothing is wrapped yet."""
        return bool(self._wrapping) and self.is_ordered(file) and self._is_before(file, node)

    def wraps_in(self, file: File, place: ast.AST) -> list[ast.AST]:
        """The places in the function around a place (or at module level) that may wrap something."""
        return self._wrapping.get((file.index, self._function(file, place)), [])

    def callers(self, file: File, place: ast.AST) -> list[Place] | None:
        """Every place that may call the function around a place; None where there may be others."""
        function = self._function(file, place)
        return self._callers(function) if function is not None else None

    def is_ordered(self, file: File) -> bool:
        """Whether it is seen of each wrap in the programs of a file by which calls it is reached."""
        return self._unordered.isdisjoint(self.programs.of(file.path))

    def may_be_ours(self, file: File, call: ast.Call) -> bool:
        """Whether a call may reach a function of the repository that the analysis does not see."""
        if self.program.callees(file, call) or not isinstance(call.func, (ast.Name, ast.Attribute)):
            return not self.program.callees(file, call)
        return _may_be_ours(file, call.func)

    def _spread(self, wraps: Iterable[Place]) -> dict[tuple[int, FunctionValue | None], list[ast.AST]]:
        """For each function (None for module level) the places in it that may wrap something, in however many steps."""
        found: dict[tuple[int, FunctionValue | None], list[ast.AST]] = {}
        pending = list(wraps)
        while pending:
            file, node = pending.pop()
            function = self._function(file, node)
            known = found.setdefault((file.index, function), [])
            if any(node is other for other in known):
                continue
            known.append(node)
            if function is not None and len(known) == 1:
                callers = self._callers(function)
                if not callers:
                    self._unordered |= set(self.programs.of(file.path))
                pending += callers or ()
        return found

    def _function(self, file: File, node: ast.AST) -> FunctionValue | None:
        """The function around a place; a made-up one, which nothing calls, where the analysis knows none."""
        around = file.function(node)
        if around is None:
            return None
        return next((v for v in file.values(around) if isinstance(v, FunctionValue)), FunctionValue(file.index, NOTHING))

    def _is_before(self, file: File, node: ast.AST) -> bool:
        function = self._function(file, node)
        around = list(file.ancestors(node))
        if file.function(node) in around:
            around = around[: around.index(file.function(node))]  # type: ignore[arg-type]
        loops = [a for a in around if isinstance(a, _LOOPS)]
        for wrap in self._wrapping.get((file.index, function), ()):
            above = list(file.ancestors(wrap))
            if node in above or any(loop in loops for loop in above):
                return False
            if wrap is not node and wrap not in around and _position(wrap) < _position(node):
                return False
        if function is None:
            return self._is_run_first(file)
        if function not in self._starts:
            self._starts[function] = False  # for one that calls itself
            self._starts[function] = self._starts_before(function)
        return self._starts[function]

    def _is_run_first(self, file: File) -> bool:
        """Whether a file is an entry point, and imports none that wraps something when it is imported."""
        others = (self.program.facts[i].path for i, function in self._wrapping if function is None and i != file.index)
        return file.index in self.programs.entries and not any(file.path in self.programs.of(path) for path in others)

    def _starts_before(self, function: FunctionValue) -> bool:
        if function.index == NOTHING or _is_lazy(self.program.function_node(function)[1]):
            return False
        callers = self._callers(function)
        return bool(callers) and all(self._is_before(*caller) for caller in callers)

    # --- callers ------------------------------------------------------------------------------------------

    def _callers(self, function: FunctionValue) -> list[Place] | None:
        """Every place that may call a function; None where there may be others."""
        flow = self.program.flow
        if function.index == NOTHING or function in flow.called_by_name or function in flow.deferred:
            return None
        facts = flow.files[function.file].functions[function.index]
        sites = sorted(flow.called.get(function, ()))
        if not all(map(self.program.is_written_as_call, sites)):
            return None
        found: list[Place] = [self.program.call_node(site) for site in sites]
        is_method = facts.owner_class != NOTHING
        if is_method and not self._is_called_by_own_code(ClassValue(function.file, facts.owner_class), facts.name):
            return None
        if not is_method or facts.name != "__init__":
            calls, handed_on = self._named.get(facts.name, ([], []))
            found += [c for c in calls if is_method or self._sees(c[0], function)]
            for file, node in handed_on:
                parent = file.parents[node]
                is_followed = isinstance(parent, ast.Call) and function in self.program.callees(file, parent)
                if not is_followed and (is_method or self._sees(file, function)):
                    launch = self._launch(file, node)
                    if launch is None:
                        return None
                    found.append((file, launch))
        return found if len(found) <= _MOST_CALLERS else None

    def _sees(self, file: File, function: FunctionValue) -> bool:
        name = self.program.flow.files[function.file].functions[function.index].name
        return file.index == function.file or name in file.imported_names or bool(self.program.facts[file.index].stars)

    def _is_called_by_own_code(self, cls: ClassValue, name: str) -> bool:
        """Whether nothing but visible calls runs a method: no base from outside, no registry that makes the objects."""
        flow = self.program.flow
        if name in CALLED_BY_TORCH or (name.startswith("__") and name != "__init__"):
            return False
        if name != "__init__":
            return all(base.startswith(HARMLESS_BASES) for base in flow.external_bases(cls))
        made = flow.instances.get(cls, set())
        written = flow.files[cls.file].classes[cls.index].name
        return all(one.site >= 0 for one in made if isinstance(one, Instance)) and not self._named.get(written, ([], []))[1]

    def _launch(self, file: File, node: ast.AST) -> ast.Call | None:
        """The call at module level of a script that is handed a function, as ``fire.Fire(main)``: it runs it there."""
        parent = file.parents[node]
        if file.function(node) is None and isinstance(parent, ast.Call) and file.index in self.programs.entries:
            return parent if isinstance(file.parents[parent], ast.Expr) else None
        return None

    @cached_property
    def _named(self) -> dict[str, tuple[list[Place], list[Place]]]:
        """By name: the calls of which nobody knows what they call, and the places that hand something on."""
        found: dict[str, tuple[list[Place], list[Place]]] = {}
        for file in map(self.program.file, self.program.relevant_files()):
            for node in file.nodes(ast.Name, ast.Attribute):
                if not isinstance(node.ctx, ast.Load):
                    continue
                name = node.id if isinstance(node, ast.Name) else node.attr
                parent = file.parents[node]
                calls, handed_on = found.setdefault(name, ([], []))
                if isinstance(parent, ast.Call) and parent.func is node:
                    if not self.program.callees(file, parent) and _may_be_ours(file, node):
                        calls.append((file, parent))
                elif not _only_names(parent, node):
                    handed_on.append((file, node))
        return found


def _may_be_ours(file: File, function: ast.Name | ast.Attribute) -> bool:
    """Whether what a call reaches may be a function of the repository, where the analysis knows none."""
    values = file.values(function.value if isinstance(function, ast.Attribute) else function)
    return not values or any(isinstance(v, Unknown) or (isinstance(v, Opaque) and v.name == "?") for v in values)


def _only_names(parent: ast.AST, node: ast.AST) -> bool:
    """Whether a function or class is only named here: a base, an annotation, the owner of an attribute, part of a test."""
    if isinstance(parent, (ast.Attribute, ast.ClassDef, ast.arg, ast.AnnAssign, ast.Compare)):
        return True
    if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return parent.returns is node
    return isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id in ("isinstance", "super")


def _position(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def _is_lazy(function: ast.AST) -> bool:
    """Whether a function's body runs at another time than its call: a generator, a coroutine."""
    if isinstance(function, ast.AsyncFunctionDef):
        return True
    return any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(function))
