"""Optimizers built before the wrap: they would hold parameters that are no longer the model's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..analysis.values import Derived, Instance, Kept, Opaque, Optimizer, Value, Wrapped
from ..findings import Level
from ..groups import Group, Wrap
from ..migration import Migration
from ..program import owner_of
from ..rule import Example, Outcome, Rule
from ..sharding.arguments_of_calls import argument_of
from ..sites import Site
from ..training.following import HELPER, Spot, follow, write
from ..training.moves import Meeting, Move, meetings_of, parameters_taken, sound_move
from ..view import FileView

SYMBOL = "torch.optim.Optimizer"
_BUILDER = re.compile(r"^(create|build|make|get|configure|prepare|init|setup)\w*optim(izer)?s?(_v\d)?$")
"""Names of functions that build optimizers."""
_ADVICE = (
    "Build the optimizer after fully_shard, and its scheduler and the loading of its state after it: sharding replaces "
    "the model's parameters."
)


def find(migration: Migration) -> Iterator[Site]:
    """Optimizers of a group whose construction runs before one of its wraps, or cannot be ordered."""
    for group in migration.groups.all:
        for optimizer in _optimizers(migration, group):
            view, call = migration.program.call_node(optimizer.site)
            if _takes_wrapped(migration, optimizer):
                continue
            if _early(migration, group, view, call) or _unordered(migration, group, (view, call)):
                yield Site(view, call, SYMBOL, "hazard", group, (optimizer,), call)


def _takes_wrapped(migration: Migration, optimizer: Optimizer | Opaque) -> bool:
    """Whether the parameters are taken off what the wrapper returned, so that it cannot come later."""
    held = migration.program.elements(migration.program.attribute(optimizer, "params"))
    owners = {owner_of(value) for value in held if isinstance(value, Derived)}
    return bool(owners) and all(isinstance(owner, (Kept, Wrapped)) for owner in owners)


def _optimizers(migration: Migration, group: Group) -> list[Optimizer | Opaque]:
    """Optimizers of a group, those that outside code builds for its model or its parameters (``create_optimizer``),
    and those over a model that outside code has turned into the group's.
    """
    seen = {optimizer.site for optimizer in group.optimizers}
    built = [value for value in _built_outside(migration, group) if value.site not in seen]
    found: list[Optimizer | Opaque] = [*group.optimizers, *built]
    makers = [migration.program.call_node(value.site) for value in group.raw if isinstance(value, Opaque)]
    makers.extend(place for wrap in group.wraps for place in _unpacked_from(migration, wrap))
    inner: set[Value] = set()
    for view, call in makers:
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
            inner.update(v for v in view.values(argument) if isinstance(v, (Instance, Opaque)))
    if inner:
        for value in migration.program.flow.values:
            if isinstance(value, Optimizer) and value not in found:
                held = migration.program.elements(migration.program.attribute(value, "params"))
                if any(owner_of(v) in inner for v in held):
                    found.append(value)
    return found


def _built_outside(migration: Migration, group: Group) -> list[Opaque]:
    found: list[Opaque] = []
    for value in migration.once("results of builders", None, lambda: _results_of_builders(migration)):
        view, call = migration.program.call_node(value.site)
        given = [v for argument in call.args for v in migration.program.elements(view.values(argument))]
        given += [v for k in call.keywords for v in migration.program.elements(view.values(k.value))]
        if any(owner_of(v) in group.raw or any(w.value == owner_of(v) for w in group.wraps) for v in given):
            found.append(value)
    return found


def _results_of_builders(migration: Migration) -> list[Opaque]:
    """What outside functions return whose names say that they build optimizers."""
    opaque = (value for value in migration.program.flow.values if isinstance(value, Opaque))
    return [value for value in opaque if _BUILDER.search(value.name.rpartition(".")[2].lower())]


def _unpacked_from(migration: Migration, wrap: Wrap) -> list[tuple[FileView, ast.Call]]:
    """Calls of outside code whose result is unpacked into the model, among other things, before it comes to the wrap."""
    found: list[tuple[FileView, ast.Call]] = []
    pending: list[tuple[FileView, ast.Call, ast.expr]] = [(wrap.view, wrap.node, a) for a in wrap.node.args[:1]]
    seen: set[ast.Call] = set()
    while pending:
        view, call, model = pending.pop()
        seen.add(call)
        function = view.function(call)
        for node in ast.walk(function or view.tree) if not view.values(model) else ():
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.lineno < call.lineno:
                targets = [view.text(e) for t in node.targets if isinstance(t, ast.Tuple) for e in t.elts]
                if view.text(model) in targets:
                    found.append((view, node.value))
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) and isinstance(model, ast.Name):
            for place, caller in migration.program.callers(view, function):
                given = argument_of(place, caller, view, function, model.id)
                if given is not None and caller not in seen:
                    pending.append((place, caller, given))
    return found


def _early(migration: Migration, group: Group, view: FileView, call: ast.Call) -> list[tuple[ast.AST, Wrap]]:
    """What of an optimizer runs before which wrap: its construction, or the collection of its parameters."""
    found: list[tuple[ast.AST, Wrap]] = []
    wraps = [wrap for wrap in group.wraps if not _is_filled_again(migration, wrap, view.values(call))]
    for node in (call, *parameters_taken(migration, view, call, group)):
        for wrap in wraps:
            if migration.order.relation((view, node), (wrap.view, wrap.node)) in ("before", "both"):
                found.append((node, wrap))
    return found


def _is_filled_again(migration: Migration, wrap: Wrap, built: list[Value]) -> bool:
    """Whether an optimizer gets its groups anew behind a wrap: ``param_groups.clear()``, then ``add_param_group(…)``."""
    view, emptied = wrap.view, ""
    scope = view.function(wrap.node) or view.tree
    calls = [c for c in ast.walk(scope) if isinstance(c, ast.Call) and isinstance(c.func, ast.Attribute)]
    for call in sorted(calls, key=lambda c: (c.lineno, c.col_offset)):
        assert isinstance(call.func, ast.Attribute)
        owner = call.func.value
        if call.lineno <= (wrap.node.end_lineno or 0):
            continue
        if call.func.attr == "clear" and isinstance(owner, ast.Attribute) and owner.attr == "param_groups":
            held = migration.program.elements(view.values(owner.value))
            emptied = view.text(owner.value) if set(held) & set(built) else ""
        elif call.func.attr == "add_param_group" and emptied == view.text(owner):
            return True
    return False


def _unordered(migration: Migration, group: Group, place: tuple[FileView, ast.AST]) -> bool:
    return all(
        not migration.order.meetings(place, (wrap.view, wrap.node)) for wrap in group.wraps
    )  # fmt: skip


def check(site: Site, migration: Migration) -> Outcome:
    group, view, call = site.group, site.view, site.call
    assert group is not None and call is not None
    early = _early(migration, group, view, call)
    if not early:
        return Outcome(
            Level.REVIEW,
            "nothing here shows whether this optimizer is built before or after the model is sharded",
            _ADVICE,
        )
    places = ", ".join(dict.fromkeys(wrap.place for _, wrap in early))
    outcome = Outcome(Level.SAFE, "the optimizer was built before the wrap")
    for node, wrap in early:
        meetings = meetings_of(migration, (view, node), wrap)
        if not meetings:
            reason = f"the optimizer is built here, before the model is wrapped at {places}"
            return _followed(migration, group) or _manual(reason)
        for meeting in meetings:
            move = _move(migration, meeting)
            if isinstance(move, str):
                reason = f"the optimizer is built before the model is wrapped at {places}: {move}"
                return _followed(migration, group) or _manual(reason)
            what = "the optimizer was built" if node is call else "the optimizer's parameters were collected"
            outcome.message = f"{what} before the wrap: {move.message}"
            outcome.patches.append(move.patch())
    return outcome


def _manual(message: str) -> Outcome:
    return Outcome(Level.MANUAL, message, _ADVICE, holds=True)


def _followed(migration: Migration, group: Group) -> Outcome | None:
    """Where neither can move: the optimizers of a group get the sharded parameters at the statements that shard."""
    spots = migration.once("following", group, lambda: _spots(migration, group))
    if not spots:
        return None
    outcome = Outcome(
        Level.REVIEW,
        "the optimizer is built before the wrap, and neither can move: where the sharding stands, its groups get the "
        "sharded parameters instead of those they hold, and its state is sharded alike",
    )
    write(migration, outcome, spots)
    return outcome


def _spots(migration: Migration, group: Group) -> list[Spot] | None:
    early: list[tuple[Optimizer, Wrap]] = []
    for optimizer in _optimizers(migration, group):
        wraps = [wrap for _, wrap in _early(migration, group, *migration.program.call_node(optimizer.site))]
        if wraps and not isinstance(optimizer, Optimizer):
            return None
        if isinstance(optimizer, Optimizer) and not _takes_wrapped(migration, optimizer):
            early.extend((optimizer, wrap) for wrap in dict.fromkeys(wraps))
    return follow(migration, group, early)


def _move(migration: Migration, meeting: Meeting) -> Move | str:
    """The move for all optimizers and wraps that come together in a block, whatever their groups."""
    return migration.once("move", id(meeting.block), lambda: _plan(migration, meeting))


def _plan(migration: Migration, meeting: Meeting) -> Move | str:
    firsts: list[int] = []
    wraps: set[int] = set()
    groups: list[Group] = []
    for group in migration.groups.all:
        for optimizer in _optimizers(migration, group):
            view, call = migration.program.call_node(optimizer.site)
            if _takes_wrapped(migration, optimizer):
                continue
            for node, wrap in _early(migration, group, view, call):
                for other in meetings_of(migration, (view, node), wrap) or ():
                    if other.block is meeting.block:
                        firsts.append(other.optimizer)
                        wraps.add(other.wrap)
                        groups.extend((group,) if group not in groups else ())
    return sound_move(migration, meeting.view, meeting.block, min(firsts), sorted(wraps), groups)


_BEFORE = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = build()
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)

# shard
model = FSDP(model, use_orig_params=True)
"""
_AFTER = """\
import torch
from torch.distributed.fsdp import fully_shard

model = build()
# shard
fully_shard(model)

optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
"""

_STAYS_BEFORE = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def prepare(model):
    return DDP(model, broadcast_buffers=False)


class Trainer:
    def __init__(self, model, path=None):
        self.optimizer = torch.optim.AdamW(model.parameters())
        if path is not None and not self.resume(path):
            raise ValueError(path)
        self.model = prepare(model)
"""
_STAYS_AFTER = f"""\
import torch
import torch.distributed as dist
from contextlib import contextmanager
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor


{HELPER.format(manager="contextmanager", name="optimizers_following", distribute="distribute_tensor")}

def prepare(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    fully_shard(model)
    return model


class Trainer:
    def __init__(self, model, path=None):
        self.optimizer = torch.optim.AdamW(model.parameters())
        if path is not None and not self.resume(path):
            raise ValueError(path)
        with optimizers_following(model, self.optimizer):
            self.model = prepare(model)
"""

RULE = Rule(
    id="FS501",
    title="The optimizer is built on the sharded parameters",
    why=(
        "fully_shard replaces the parameters of the model. An optimizer built before holds the old ones, which get no "
        "gradients: its steps change nothing and nothing raises; the loss drifted off by 9.7e-2 in six steps."
    ),
    symbols=(SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("https://github.com/pytorch/pytorch/issues/149205",),
    proof=("nanogpt_ddp", "trainer_class", "optimizer_before_ddp"),
    examples=(
        Example(_BEFORE, _AFTER),
        Example(
            _STAYS_BEFORE,
            _STAYS_AFTER,
            Level.REVIEW,
            "Where neither can move, the optimizer gets the sharded parameters at the statement that shards.",
        ),
    ),
)
