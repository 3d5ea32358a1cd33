"""Parameters of several types in one model: DDP reduces each as it is, one group of fully_shard takes a single type."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site

_SYMBOL = "torch.nn.Parameter.data.to"
_TYPES = frozenset({"half", "bfloat16", "float", "double"})


def find(migration: Migration) -> Iterator[Site]:
    """Functions that give some parameters another type, in repositories with a model that DDP wraps: the first place of each."""
    groups = [group for group in migration.groups.all if any(wrap.value.kind == "DDP" for wrap in group.wraps)]
    if not groups or migration.program.keeps_ddp:
        return
    group = groups[0] if len(groups) == 1 else None
    seen: set[ast.AST] = set()
    for view in migration.views():
        for node in view.nodes(ast.Assign):
            function = view.function(node) or node
            if _changes_type(node) and function not in seen:
                seen.add(function)
                yield Site(view, node, _SYMBOL, "hazard", group, ())


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


def _read(target: ast.Attribute) -> ast.Attribute:
    """The target as an expression that is read."""
    return ast.Attribute(target.value, target.attr, ast.Load())


def _is_type(node: ast.expr) -> bool:
    """``torch.bfloat16``, ``dtype`` or ``self.dtype``."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in _TYPES or name.startswith("float") or "dtype" in name


def check(site: Site, migration: Migration) -> Outcome:
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

RULE = Rule(
    id="FS124",
    title="Parameters of several types",
    why=(
        "fully_shard flattens nothing, but gathers the parameters of a group together: with trainable ones of several "
        'types the first forward raises "FSDP expects uniform original parameter dtype". DDP has no such demand.'
    ),
    symbols=(_SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, _init_mp_dtypes; run on torch 2.13",),
    examples=(Example(_HALF, _HALF_AFTER, Level.MANUAL, "it raises, so that nothing is held back"),),
)
