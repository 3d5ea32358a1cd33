"""Which state dict a call asks for: the ``state_dict_type`` in force there, and the options its configs stand for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..analysis.values import Constant, External, Opaque
from ..groups import Group
from ..migration import Migration
from ..sites import Site
from ..view import FileView
from .chosen import Choice, choice_of, holds_at, is_made_of, is_method_of
from .opened import Through, leaves_open, opened

_FSDP = "torch.distributed.fsdp"
_KINDS = {
    f"{_FSDP}.StateDictType.FULL_STATE_DICT": "full",
    f"{_FSDP}.StateDictType.SHARDED_STATE_DICT": "sharded",
    f"{_FSDP}.StateDictType.LOCAL_STATE_DICT": "local",
}
CONFIG_CLASSES: frozenset[str] = frozenset(
    f"{_FSDP}.{kind}{of}Config" for kind in ("Full", "Sharded", "Local") for of in ("StateDict", "OptimStateDict")
)


@dataclass(frozen=True, eq=False)
class Given:
    """An argument, and the call that it is written in."""

    view: FileView
    call: ast.Call
    node: ast.expr | None


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
    at: Given | None = None
    """Where it is handed to the context."""

    def is_at_hand(self, view: FileView, node: ast.AST) -> bool:
        """Whether its variable means the same at another place."""
        return self.at is None or self.name is None or holds_at(self.at.view, self.at.call, view, node, self.name)


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
    first = found[0]
    if first.choice is not None:
        is_same = all(context.choice == first.choice for context in found)
        configs = [config for config in (first.model, first.optimizer) if config is not None]
        is_told = first.choice.reaches(view, node, first.choice.text) and all(c.is_at_hand(view, node) for c in configs)
        return first if is_same and is_told else StateContext(view, None, "unknown")
    return first if len(kinds) == 1 else StateContext(view, None, "unknown")


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
                every = opened(migration, view, item.context_expr) if item.context_expr is not node else []
                found = [read_context(migration, one.view, one.call, one.through) for one in every]
                if found:
                    is_one = len(found) == 1 or (len({c.kind for c in found}) == 1 and found[0].choice is None)
                    return found[0] if is_one else StateContext(view, found[0].call, "unknown")
        if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return None
    return None


def _set_before(migration: Migration, view: FileView, node: ast.AST) -> StateContext | None:
    """The last ``set_state_dict_type(…)`` above a place in its function; of unknown kind where branches differ about it."""
    line, function = view.line(node), view.function(node)
    calls = [
        site.call
        for site in _settings(migration)
        if site.view is view and site.call is not None and site.call.lineno < line and view.function(site.call) is function
    ]
    found: list[StateContext] = []
    for call in sorted(calls, key=lambda call: call.lineno, reverse=True):
        if _are_apart(view, call, node):
            continue
        found.append(read_context(migration, view, call))
        block, _ = view.block_of(view.statement(call))
        if any(ancestor in block for ancestor in view.ancestors(node)):
            break
    kinds = {context.kind for context in found}
    if len(kinds) > 1 or (len(found) > 1 and "chosen" in kinds):
        return StateContext(view, found[0].call, "unknown")
    return found[0] if found else None


def _are_apart(view: FileView, first: ast.AST, second: ast.AST) -> bool:
    """Whether two places lie in different branches of one ``if``."""
    around = set(view.ancestors(second))
    below: ast.AST = first
    for ancestor in view.ancestors(first):
        if isinstance(ancestor, ast.If) and ancestor in around:
            return any(
                below in branch and not any(node in branch for node in around)
                for branch in (ancestor.body, ancestor.orelse)
            )
        below = ancestor
    return False


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


def read_context(
    migration: Migration, view: FileView, call: ast.Call, through: Through | None = None
) -> StateContext:
    """What a call of ``state_dict_type`` or ``set_state_dict_type`` says, with what its function was handed."""
    names = ("module", "state_dict_type", "state_dict_config", "optim_state_dict_config")
    arguments = bound_arguments(call, names[1:] if is_method_of(view, call) else names)
    kind_at, *config_at = [_handed(view, call, arguments.get(name), through) for name in names[1:]]
    values = kind_at.view.values(kind_at.node) if kind_at.node is not None else []
    kinds = {_KINDS.get(value.name, "unknown") if isinstance(value, External) else "unknown" for value in values}
    kind = kinds.pop() if len(kinds) == 1 else "unknown"
    if kind == "unknown" and kind_at.node is not None:
        choice = choice_of(kind_at.view, kind_at.call, kind_at.node)
        is_made = all(at.node is None or is_made_of(at.view, at.node, CONFIG_CLASSES) for at in config_at)
        if choice is not None and is_made:
            model, optimizer = (
                None if at.node is None else Config(None, False, None, at.view.text(at.node), at=at) for at in config_at
            )
            return StateContext(view, call, "chosen", model, optimizer, choice)
    model, optimizer = (read_config(migration, at) for at in config_at)
    return StateContext(view, call, kind, model, optimizer)


def configs_from_elsewhere(view: FileView, call: ast.Call) -> list[str]:
    """The config arguments of a call that may hold something else than configs made in the repository."""
    names = ("module", "state_dict_type", "state_dict_config", "optim_state_dict_config")
    arguments = bound_arguments(call, names[1:] if is_method_of(view, call) else names)
    given = [arguments[name] for name in names[2:] if name in arguments and not _is_none(arguments[name])]
    return [view.text(node) for node in given if not isinstance(node, ast.Call) and not is_made_of(view, node, CONFIG_CLASSES)]


def told_by_callers(migration: Migration, view: FileView, call: ast.Call) -> bool:
    """Whether a function opens a context for its callers, and each of them says which kind it means."""
    function = view.function(call)
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) or not leaves_open(view, call):
        return False
    callers = [Through(where, at, function) for where, at in migration.program.callers(view, function)]
    return bool(callers) and all(read_context(migration, view, call, t).kind != "unknown" for t in callers)


def _handed(view: FileView, call: ast.Call, node: ast.expr | None, through: Through | None) -> Given:
    """Where an argument is written: at the call itself, or at the one that hands it in."""
    if _is_none(node):
        node = None
    handed = through.argument(node) if through is not None and node is not None else None
    if through is None or handed is None:
        return Given(view, call, node)
    return Given(through.view, through.call, None if _is_none(handed) else handed)


def _is_none(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def bound_arguments(call: ast.Call, names: tuple[str, ...]) -> dict[str, ast.expr]:
    """Arguments of a call by parameter name."""
    bound = dict(zip(names, call.args, strict=False))
    bound.update({keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None})
    return bound


def read_config(migration: Migration, given: Given) -> Config | None:
    """What a config argument says; None where there is none, or where nothing is known of it."""
    if given.node is None:
        return None
    if isinstance(given.node, ast.Call):
        return replace(flags_of(given.view, given.node), at=given)
    made = [v for v in given.view.values(given.node) if isinstance(v, Opaque) and v.name in CONFIG_CLASSES]
    if len(made) != 1:
        return None
    owner, call = migration.program.call_node(made[0].site)
    config = flags_of(owner, call)
    return replace(config, name=given.view.text(given.node), at=given)


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
