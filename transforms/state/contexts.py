"""Which state dict a call asks for: the ``state_dict_type`` in force there, and the options its configs stand for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..analysis.symbols import FSDP1
from ..analysis.values import Constant, Derived, External, Opaque
from ..groups import Group
from ..migration import Migration
from ..sites import Site
from ..view import FileView
from .chosen import Choice, choice_of, is_made_of, is_method_of

_FSDP = "torch.distributed.fsdp"
_KINDS = {
    f"{_FSDP}.StateDictType.FULL_STATE_DICT": "full",
    f"{_FSDP}.StateDictType.SHARDED_STATE_DICT": "sharded",
    f"{_FSDP}.StateDictType.LOCAL_STATE_DICT": "local",
}
CONFIG_CLASSES: frozenset[str] = frozenset(
    f"{_FSDP}.{kind}{of}Config" for kind in ("Full", "Sharded", "Local") for of in ("StateDict", "OptimStateDict")
)


@dataclass(frozen=True)
class Config:
    """What a ``*StateDictConfig`` says. ``name`` is set where it is a variable that is rewritten at its definition."""

    offload: bool | None
    """Also the default of optimizer configs, which is True."""
    asks_to_offload: bool
    """Whether offloading is asked for in so many words."""
    rank0_only: bool | None
    name: str | None = None
    condition: str | None = None
    """Source text of ``rank0_only`` where it is not a constant."""


@dataclass(frozen=True, eq=False)
class StateContext:
    """A ``state_dict_type`` in force. ``kind`` is full, sharded, local, chosen (at run time) or unknown."""

    view: FileView
    call: ast.Call | None
    kind: str
    model: Config | None = None
    optimizer: Config | None = None
    choice: Choice | None = None

    @property
    def is_sharded(self) -> bool:
        """Whether each rank has its own part: a local state dict is FSDP1's own way to keep that."""
        return self.kind in ("sharded", "local")

    @property
    def may_be_sharded(self) -> bool:
        return self.is_sharded or self.choice is not None

    @property
    def full(self) -> str:
        """The ``full_state_dict`` of options for what is loaded here; empty where it is not full."""
        if self.choice is not None:
            return f"full_state_dict={self.choice.is_full}"
        return "" if self.is_sharded else "full_state_dict=True"

    @property
    def may_be_local(self) -> bool:
        return self.kind == "local" or (self.choice is not None and self.choice.may_be_local)


DEFAULT = "default"


OLD_RANK_FILES = (
    "each rank keeps its rows as DTensors in the place of its part of the flat parameters; files that the old program "
    "wrote are refused with an error, and have to be saved by it once more in another kind"
)
"""What becomes different where a local state dict gives way to a sharded one."""


def context_at(migration: Migration, view: FileView, node: ast.AST, group: Group | None) -> StateContext:
    """The context in force at a place; kind ``default`` (a full state dict on every rank) where there is none."""
    found = contexts_of(migration, view, node) or list(_set_anywhere(migration, group))
    if not found:
        return StateContext(view, None, DEFAULT)
    kinds = {context.kind for context in found}
    if len(kinds) > 1 or not all(_is_told(context, found[0], view, node) for context in found):
        return StateContext(view, None, "unknown")
    return found[0]


def _is_told(context: StateContext, first: StateContext, view: FileView, node: ast.AST) -> bool:
    """Whether what tells a chosen kind, and the options for it, is at hand at a place."""
    if context.choice is None or first.choice is None:
        return True
    names = [config.name for config in (context.model, context.optimizer) if config is not None and config.name]
    is_same = (context.choice.text, context.model, context.optimizer) == (first.choice.text, first.model, first.optimizer)
    return is_same and all(context.choice.reaches(view, node, text) for text in (context.choice.text, *names))


def contexts_of(migration: Migration, view: FileView, node: ast.AST) -> list[StateContext]:
    """The contexts that a place may be under, seen from itself and from the callers of its function."""
    return list(_contexts(migration, view, node, set()))


def _contexts(migration: Migration, view: FileView, node: ast.AST, seen: set[ast.AST]) -> Iterator[StateContext]:
    """The contexts around a place, or else around the calls through which it is reached."""
    lexical = _around(migration, view, node) or _set_before(migration, view, node)
    if lexical is not None:
        yield lexical
        return
    function = view.function(node)
    if function is None or function in seen:
        return
    seen.add(function)
    for caller, call in migration.program.callers(view, function):
        yield from _contexts(migration, caller, call, seen)


def _around(migration: Migration, view: FileView, node: ast.AST) -> StateContext | None:
    """The innermost ``with …state_dict_type(…):`` around a place."""
    for ancestor in view.ancestors(node):
        if isinstance(ancestor, (ast.With, ast.AsyncWith)):
            for item in ancestor.items:
                if item.context_expr is node:
                    continue
                call = context_call(migration, view, item.context_expr)
                if call is not None:
                    return read_context(migration, *call)
        if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return None
    return None


def context_call(migration: Migration, view: FileView, expression: ast.expr) -> tuple[FileView, ast.Call] | None:
    """The call of ``state_dict_type`` that a context expression is, or is the result of."""
    if isinstance(expression, ast.Call) and is_context_call(view, expression):
        return view, expression
    if not any(isinstance(v, Derived) and v.kind == "state_dict_context" for v in view.values(expression)):
        return None
    if isinstance(expression, ast.Name):
        scope = view.function(expression) or view.tree
        for statement in ast.walk(scope):
            if isinstance(statement, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == expression.id for t in statement.targets
            ):
                for inner in ast.walk(statement.value):
                    if isinstance(inner, ast.Call) and is_context_call(view, inner):
                        return view, inner
    if isinstance(expression, ast.IfExp):
        for inner in ast.walk(expression):
            if isinstance(inner, ast.Call) and is_context_call(view, inner):
                return view, inner
    if isinstance(expression, ast.Call):
        for callee in migration.program.callees(view, expression):
            owner, function = migration.program.function_node(callee)
            for inner in ast.walk(function):
                if isinstance(inner, ast.Call) and is_context_call(owner, inner):
                    return owner, inner
    return None


def is_context_call(view: FileView, call: ast.Call, name: str = "state_dict_type") -> bool:
    """Whether a call is ``FSDP.state_dict_type(…)`` or the same method of a model."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != name:
        return False
    return view.external(call.func.value) in (None, FSDP1)


def _set_before(migration: Migration, view: FileView, node: ast.AST) -> StateContext | None:
    """The last ``set_state_dict_type(…)`` above a place in its function."""
    line, function = view.line(node), view.function(node)
    calls = [
        site.call
        for site in _settings(migration)
        if site.view is view
        and site.call is not None
        and site.call.lineno < line
        and view.function(site.call) is function
    ]
    return read_context(migration, view, max(calls, key=lambda call: call.lineno)) if calls else None


def _settings(migration: Migration) -> list[Site]:
    """Every call of ``set_state_dict_type`` in the repository."""

    def find() -> list[Site]:
        every = (site for sites in migration.sites.values() for site in sites)
        return [site for site in every if site.member == "set_state_dict_type" and site.call is not None]

    return migration.once("set_state_dict_type", None, find)


def _set_anywhere(migration: Migration, group: Group | None) -> Iterator[StateContext]:
    """Every ``set_state_dict_type(…)`` of the repository that is about this group: models under DDP have no such setting."""
    if group is not None and "FSDP1" not in group.kinds:
        return
    for site in _settings(migration):
        if site.call is not None and site.group in (group, None):
            yield read_context(migration, site.view, site.call)


def read_context(migration: Migration, view: FileView, call: ast.Call) -> StateContext:
    """What a call of ``state_dict_type`` or ``set_state_dict_type`` says."""
    names = ("module", "state_dict_type", "state_dict_config", "optim_state_dict_config")
    arguments = bound_arguments(call, names[1:] if is_method_of(view, call) else names)
    kind_node = arguments.get("state_dict_type")
    configs = [None if _is_none(node) else node for node in map(arguments.get, names[2:])]
    kinds = {
        _KINDS.get(value.name, "unknown") if isinstance(value, External) else "unknown"
        for value in (view.values(kind_node) if kind_node is not None else ())
    }
    kind = kinds.pop() if len(kinds) == 1 else "unknown"
    choice = choice_of(view, call, kind_node) if kind == "unknown" and kind_node is not None else None
    if choice is not None and all(node is None or is_made_of(view, node, CONFIG_CLASSES) for node in configs):
        model, optimizer = (None if node is None else Config(None, False, None, view.text(node)) for node in configs)
        return StateContext(view, call, "chosen", model, optimizer, choice)
    model, optimizer = (read_config(migration, view, node) for node in configs)
    return StateContext(view, call, kind, model, optimizer)


def _is_none(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def bound_arguments(call: ast.Call, names: tuple[str, ...]) -> dict[str, ast.expr]:
    """Arguments of a call by parameter name."""
    bound = dict(zip(names, call.args, strict=False))
    bound.update({keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None})
    return bound


def read_config(migration: Migration, view: FileView, node: ast.expr | None) -> Config | None:
    """What a config argument says; None where there is none, or where nothing is known of it."""
    if node is None or _is_none(node):
        return None
    if isinstance(node, ast.Call):
        return flags_of(view, node)
    made = [v for v in view.values(node) if isinstance(v, Opaque) and v.name in CONFIG_CLASSES]
    if len(made) != 1:
        return None
    owner, call = migration.program.call_node(made[0].site)
    config = flags_of(owner, call)
    return replace(config, name=view.text(node))


def flags_of(view: FileView, call: ast.Call) -> Config:
    """The flags of a config's constructor; None for a flag that is only known at run time."""
    optimizer = "Optim" in (view.external(call.func) or "")
    arguments = bound_arguments(call, ("offload_to_cpu", "rank0_only"))
    rank0 = arguments.get("rank0_only")
    rank0_only = _flag(view, rank0, False)
    condition = view.text(rank0) if rank0 is not None and rank0_only is None else None
    offload = arguments.get("offload_to_cpu")
    asks = _flag(view, offload, False) is True
    return Config(_flag(view, offload, optimizer), asks, rank0_only, condition=condition)


def _flag(view: FileView, node: ast.expr | None, default: bool) -> bool | None:
    if node is None:
        return default
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return node.value
    values = view.values(node)
    if len(values) == 1 and isinstance(values[0], Constant) and isinstance(values[0].value, bool):
        return values[0].value
    return None
