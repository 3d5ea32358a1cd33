"""Types of parameters: several in one model, of which fully_shard takes a single one, and another one behind the wrap."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.values import Wrapped
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..view import FileView

_SYMBOL = "torch.nn.Parameter.data.to"
_WHOLE = "torch.nn.Module.to"
_TYPES = frozenset({"half", "bfloat16", "float", "double"})


def find(migration: Migration) -> Iterator[Site]:
    """Functions that give some parameters another type, in repositories with a model that DDP wraps: the first place of each."""
    groups = [group for group in migration.groups.all if any(wrap.value.kind == "DDP" for wrap in group.wraps)]
    if not groups or migration.program.keeps_ddp:
        return
    yield from _behind_wraps(migration)
    group = groups[0] if len(groups) == 1 else None
    seen: set[ast.AST] = set()
    for view in migration.views():
        for node in view.nodes(ast.Assign):
            function = view.function(node) or node
            if _changes_type(node) and function not in seen:
                seen.add(function)
                yield Site(view, node, _SYMBOL, "hazard", group, ())


def _behind_wraps(migration: Migration) -> Iterator[Site]:
    """Wrapped models that get another type: ``model = DDP(model)``, then ``model.to(torch.bfloat16)``."""
    for view in migration.views():
        for node in view.nodes(ast.Call):
            if not isinstance(node.func, ast.Attribute) or not _asks_for_type(view, node, node.func.attr):
                continue
            values = tuple(view.values(node.func.value))
            if any(isinstance(value, Wrapped) and value.kind == "DDP" for value in values):
                yield Site(view, node, _WHOLE, "hazard", migration.groups.of(values), values, node)


def _asks_for_type(view: FileView, call: ast.Call, method: str) -> bool:
    """``half()``, ``bfloat16()``, ``double()`` and ``to(torch.float16)``; ``float()`` mostly changes nothing."""
    if method != "to":
        return method in _TYPES - {"float"} and not call.args
    given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "dtype")]
    return any((view.external(argument) or "") in _NARROW for argument in given)


def _changes_type(statement: ast.Assign) -> bool:
    """``layer.weight.data = layer.weight.data.to(dtype)``."""
    target, call = statement.targets[0], statement.value
    if not isinstance(target, ast.Attribute) or target.attr != "data" or not isinstance(call, ast.Call):
        return False
    if not isinstance(call.func, ast.Attribute) or ast.dump(call.func.value) != ast.dump(_read(target)):
        return False
    if call.func.attr in _TYPES:
        return not call.args
    return call.func.attr == "to" and len(call.args) == 1 and _is_type(call.args[0])


_NARROW = frozenset({"torch.half", "torch.float16", "torch.bfloat16", "torch.double", "torch.float64"})


def _read(target: ast.Attribute) -> ast.Attribute:
    """The target as an expression that is read."""
    return ast.Attribute(target.value, target.attr, ast.Load())


def _is_type(node: ast.expr) -> bool:
    """``torch.bfloat16``, ``dtype`` or ``self.dtype``."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in _TYPES or name.startswith("float") or "dtype" in name


def check(site: Site, migration: Migration) -> Outcome:
    if site.symbol == _WHOLE:
        return Outcome(
            Level.REVIEW,
            "behind a change of type DDP reduces no gradients, since its hooks stay with the parameters as they were: each "
            "rank trained on its own; FSDP2 reduces them, and refuses the change behind a first forward",
            "Change the type before the model is sharded.",
        )
    return Outcome(
        Level.MANUAL,
        "this gives some parameters another type: DDP took a model with several types, but all trainable parameters of one "
        "fully_shard call must have the same, or the first forward raises",
        "Keep all parameters in float32 and give fully_shard a MixedPrecisionPolicy(param_dtype=…), or call fully_shard on "
        "the modules of each type before the model.",
    )


_HALF = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def lower(layer):
    if isinstance(layer, torch.nn.Linear):
        layer.weight.data = layer.weight.data.to(torch.bfloat16)


model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2))
model.apply(lower)
model = DDP(model)
"""
_HALF_AFTER = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def lower(layer):
    if isinstance(layer, torch.nn.Linear):
        layer.weight.data = layer.weight.data.to(torch.bfloat16)


model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2))
model.apply(lower)
for tensor in [*model.parameters(), *model.buffers()]:
    dist.broadcast(tensor.detach(), src=0)
fully_shard(model)
"""
_WHOLE_HALF = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(build(), broadcast_buffers=False)
model.to(torch.bfloat16)
"""
_WHOLE_HALF_AFTER = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

model = build()
for tensor in [*model.parameters(), *model.buffers()]:
    dist.broadcast(tensor.detach(), src=0)
fully_shard(model)
model.to(torch.bfloat16)
"""

RULE = Rule(
    id="FS124",
    title="Parameters of several types, or of another one later",
    why=(
        "fully_shard flattens nothing, but gathers the parameters of a group together: with trainable ones of several "
        'types the first forward raises "FSDP expects uniform original parameter dtype". DDP has no such demand, but stops '
        "reducing the gradients of parameters that get another type behind its wrap."
    ),
    symbols=(_SYMBOL, _WHOLE),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, _init_mp_dtypes; run on torch 2.13",),
    examples=(
        Example(_HALF, _HALF_AFTER, Level.MANUAL, "it raises, so that nothing is held back"),
        Example(_WHOLE_HALF, _WHOLE_HALF_AFTER, Level.REVIEW),
    ),
)
