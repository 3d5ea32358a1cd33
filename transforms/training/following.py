"""Giving optimizers the sharded parameters where the sharding stands, for those that cannot be built behind it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..analysis.values import Instance, Opaque, Optimizer
from ..groups import Group, Wrap
from ..migration import Migration
from ..order import Place
from ..rule import Outcome
from ..sharding.wrap_blocks import settings_of
from ..text.definitions import defined_before
from ..text.patches import Old, Patch
from ..view import FileView
from .named_there import model_at, optimizer_at, stale_parameters, taken_outside
from .passes import calls_named

WHY = "the optimizer gets the parameters that sharding puts in the place of those it holds"
_NAME = "optimizers_following"
HELPER = '''\
@{manager}
def {name}(model, *optimizers):
    """Gives optimizers the parameters that sharding puts in the place of those they hold, and shards their state."""
    names = {{parameter: name for name, parameter in model.named_parameters(remove_duplicate=False)}}
    yield
    parameters = dict(model.named_parameters(remove_duplicate=False))
    sharded = {{old: parameters[name] for old, name in names.items() if parameters[name] is not old}}
    for optimizer in filter(None, optimizers):
        for group in optimizer.param_groups:
            group["params"] = [sharded.get(parameter, parameter) for parameter in group["params"]]
        for old in [parameter for parameter in optimizer.state if parameter in sharded]:
            new, state = sharded[old], optimizer.state.pop(old)
            optimizer.state[new] = {{
                key: {distribute}(value, new.device_mesh, new.placements)
                if getattr(value, "shape", None) == new.shape
                else value
                for key, value in state.items()
            }}
'''
_USES = frozenset({"step", "backward", "state_dict", "load_state_dict", "add_param_group", "zero_grad"})
"""What must not run between the sharding and the moment at which the optimizer gets the sharded parameters."""
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_DEEPEST = 6


@dataclass
class Spot:
    """A statement that shards, and how the model and the optimizers that have to follow are called there."""

    view: FileView
    statement: ast.stmt
    model: str
    optimizers: list[str] = field(default_factory=list)


def follow(migration: Migration, group: Group, early: Sequence[tuple[Optimizer, Wrap]]) -> list[Spot] | None:
    """Where optimizers can be given the sharded parameters; None where that is not sound for one of them."""
    spots: dict[ast.stmt, Spot] = {}
    for optimizer, wrap in early:
        found = _Search(migration, group, optimizer, wrap).spots()
        if not found:
            return None
        for spot in found:
            known = spots.setdefault(spot.statement, spot)
            if known.model != spot.model:
                return None
            known.optimizers.extend(name for name in spot.optimizers if name not in known.optimizers)
    return list(spots.values())


def write(migration: Migration, outcome: Outcome, spots: Iterable[Spot]) -> None:
    """Puts each of the statements into a block at whose end the optimizers get the sharded parameters."""
    for spot in spots:
        view, indent = spot.view, spot.view.indent(spot.statement)
        name = _add_helper(migration, outcome, spot)
        start, end = view.line_start(spot.statement), view.line_end(spot.statement)
        head = f"{indent}with {name}({', '.join([spot.model, *spot.optimizers])}):\n"
        body = f"{indent}    "
        parts = (head, body, Old(start + len(indent), end, body))
        outcome.patches.append(Patch(view.path, start, end, parts, WHY, needed=True))


def _add_helper(migration: Migration, outcome: Outcome, spot: Spot) -> str:
    """Defines the context manager once in a file, before its first function or class."""
    view = spot.view
    definitions = view.nodes(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    taken = {node.name for node in definitions}
    name = next(n for n in (_NAME, f"{_NAME}_sharding") if n not in taken)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    top = next(s for s in view.tree.body if isinstance(s, kinds) or spot.statement in ast.walk(s))
    manager = migration.use(outcome, view, "contextlib.contextmanager", view.tree)
    distribute = migration.use(outcome, view, "torch.distributed.tensor.distribute_tensor", view.tree)
    text = HELPER.format(name=name, manager=manager, distribute=distribute)
    outcome.patches.append(defined_before(view, top, (text,), WHY))
    return name


class _Search:
    """Looks for the names of one optimizer and of one wrap's model, from the wrap outwards."""

    def __init__(self, migration: Migration, group: Group, optimizer: Optimizer, wrap: Wrap) -> None:
        self.migration = migration
        self.group = group
        self.optimizer = optimizer
        self.wrap = wrap
        self.built: Place = migration.program.call_node(optimizer.site)
        self.meetings = migration.order.meetings(self.built, (wrap.view, wrap.node))
        self.scopes = {(view, view.function(second) or view.tree) for view, _, second in self.meetings}

    def spots(self) -> list[Spot] | None:
        """The statements on all ways to the wrap that meet the optimizer."""
        wrap, order = self.wrap, self.migration.order
        ordered = order.relation(self.built, (wrap.view, wrap.node)) == "before"
        if not ordered or any(order.relation((v, a), (v, b)) != "before" for v, a, b in self.meetings):
            return None
        places = [self.built, *((view, first) for view, first, _ in self.meetings)]
        if any(stale_parameters(self.migration, self.group, view, node) for view, node in places):
            return None
        if any(taken_outside(self.migration, v, b, self.optimizer) for v, _, b in self.meetings):
            return None
        if settings_of(wrap.view, wrap.node) is not None or self._may_hold_sharded_parts():
            return None
        return self._outward(wrap.view, wrap.node, 0)

    def _may_hold_sharded_parts(self) -> bool:
        """Whether something of no known model, so maybe a part of this one, is sharded on its own after the optimizer."""
        for other in (wrap for group in self.migration.groups.all if group is not self.group for wrap in group.wraps):
            taken = self.migration.groups.models(other.view.values(other.node.args[0])) if other.node.args else []
            if not any(isinstance(value, (Instance, Opaque)) for value in taken):
                if self.migration.order.relation(self.built, (other.view, other.node)) in ("before", "both"):
                    return True
        return False

    def _outward(self, view: FileView, node: ast.AST, depth: int) -> list[Spot] | None:
        scope = view.function(node)
        callers = self.migration.program.callers(view, scope) if scope is not None else []
        meeting = [c for c in callers if self.migration.order.functions_to(c) & self.scopes]
        is_meeting = (view, scope or view.tree) in self.scopes
        if is_meeting or meeting == callers:
            spot = self._spot(view, node)
            if spot is not None:
                return [spot]
        if is_meeting or not meeting or depth > _DEEPEST or scope is None or self._goes_on(view, scope):
            return None
        found = [self._outward(*caller, depth + 1) for caller in meeting]
        return [spot for spots in found for spot in spots or ()] if all(found) else None

    def _goes_on(self, view: FileView, scope: ast.AST) -> bool:
        """Whether a function that shards may also use the optimizer, which gets the parameters only behind it."""
        body = getattr(scope, "body", [])
        if not isinstance(body, list) or calls_named(self.migration, view, body, _USES):
            return True
        return any(
            self.optimizer in self.migration.program.elements(view.values(inner))
            for statement in body
            for inner in ast.walk(statement)
            if isinstance(inner, (ast.Name, ast.Attribute))
        )

    def _spot(self, view: FileView, node: ast.AST) -> Spot | None:
        statement = view.statement(node)
        value = getattr(statement, "value", None)
        whole = value is node or (isinstance(value, ast.IfExp) and node in (value.body, value.orelse))
        if not whole or not isinstance(node, ast.Call) or not view.stands_alone(statement):
            return None
        if taken_outside(self.migration, view, node, self.optimizer):
            return None
        model = model_at(self.migration, view, node, self.wrap)
        named = optimizer_at(self.migration, view, statement, self.optimizer)
        if model is None or named is None or (not named.may_be_none and not self._always_built()):
            return None
        if not named.is_list and self._built_in_a_loop():
            return None
        return Spot(view, statement, model, [named.argument])

    def _always_built(self) -> bool:
        """Whether the optimizer is there whenever the wrap is reached."""
        return all(
            any(block is view.block_of(view.statement(first))[0] for block in _blocks(view, second))
            for view, first, second in self.meetings
        )

    def _built_in_a_loop(self) -> bool:
        """Whether several optimizers come from one place before a wrap, so that a name may mean the last one alone."""
        for view, first, second in self.meetings:
            around = set(view.ancestors(second))
            if any(isinstance(a, _LOOPS) and a not in around for a in view.ancestors(first)):
                return True
        view, call = self.built
        alone = any(first is call for _, first, _ in self.meetings)
        return not alone and any(isinstance(a, _LOOPS) for a in view.ancestors(call))


def _blocks(view: FileView, node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The blocks around a node, up to its function."""
    for inner in (node, *view.ancestors(node)):
        if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and inner is not node:
            return
        if isinstance(inner, ast.stmt):
            yield view.block_of(inner)[0]
