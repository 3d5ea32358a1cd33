"""Methods like ``model.module.encode(x)``: they run without the hooks that gather parameters."""

from __future__ import annotations

from collections.abc import Iterator

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sharding.parameter_writes import parameter_writes
from ..sites import Site
from ..training.forward_methods import method_calls, submodule_calls
from ..training.unseen_methods import unseen_method_calls

SUBMODULE = "torch.nn.Module.__call__"
UNSEEN = "torch.nn.Module.*"
SYMBOL = "torch.distributed.fsdp.register_fsdp_forward_method"


def find(migration: Migration) -> Iterator[Site]:
    for found in method_calls(migration):
        yield Site(found.view, found.call.func, SYMBOL, "hazard", found.group, (), found.call)
    for found in submodule_calls(migration):
        yield Site(found.view, found.call.func, SUBMODULE, "hazard", found.group, (), found.call)
    for view, call, group in unseen_method_calls(migration):
        yield Site(view, call.func, UNSEEN, "hazard", group, (), call)


def check(site: Site, migration: Migration) -> Outcome:
    name = getattr(site.node, "attr", "")
    if site.symbol == SUBMODULE:
        return Outcome(
            Level.MANUAL,
            f"{name}, a part of the model, is called by itself, without the hooks that gather its parameters",
            "Call it in a method of the model, and register that; or shard it before the model, where the whole model "
            "always runs first (FSDP2 refuses a unit that runs before its root).",
            holds=True,
        )
    if site.symbol == UNSEEN:
        return Outcome(
            Level.MANUAL,
            f"{name} is a method of a model whose code is not seen; if it computes with parameters, it raises on their shards",
            f'Call register_fsdp_forward_method(model, "{name}") behind fully_shard; all ranks have to call {name} then.',
        )
    written = _written(site, migration, name)
    if written:
        return Outcome(
            Level.MANUAL,
            f"{name} computes with parameters and writes into {written}: registered, it would write into gathered copies, "
            "which are lost, and nothing raises; as it stands, it meets sharded parameters, which its layers refuse",
            "Write into the parameters outside of the model's methods, where they are DTensors (with torch.no_grad(): "
            "model.layer.weight.copy_(…)), and leave to the method what only computes.",
            holds=True,
        )
    return Outcome(
        Level.REVIEW,
        f"{name} computes with parameters: where the model is sharded it is registered, so that it gathers them",
        "All ranks have to call it, as they have to call the model.",
    )


def _written(site: Site, migration: Migration, name: str) -> str:
    """A parameter that the method writes into, as it is written there."""
    if site.call is None:
        return ""
    for callee in migration.program.callees(site.view, site.call):
        view, function = migration.program.function_node(callee)
        owner = view.enclosing_class(function)
        if owner is not None:
            for at, node in parameter_writes(migration, view, owner, name):
                return at.text(node)
    return ""


_BEFORE = """\
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def encode(self, x):
        return self.layer(x)

    def forward(self, x):
        return self.encode(x).sum()


torch.cuda.set_device(local_rank)
model = Net().to(device)
model = DDP(model)
codes = model.module.encode(x)
"""
_AFTER = """\
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def encode(self, x):
        return self.layer(x)

    def forward(self, x):
        return self.encode(x).sum()


torch.cuda.set_device(local_rank)
model = Net().to(device)
for tensor in [*model.parameters(), *model.buffers()]:
    dist.broadcast(tensor.detach(), src=0)
fully_shard(model)
register_fsdp_forward_method(model, "encode")
codes = model.encode(x)
"""

RULE = Rule(
    id="FS308",
    title="Methods besides forward that compute are registered",
    why=(
        "FSDP2 gathers parameters in hooks around the model's call. A method called by its name meets sharded "
        "parameters and raises (mixed Tensor and DTensor); registered, it is treated like forward."
    ),
    symbols=(SYMBOL, SUBMODULE),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("torch/distributed/fsdp/_fully_shard/_fully_shard.py: register_fsdp_forward_method",),
    examples=(
        Example(_BEFORE, _AFTER, Level.REVIEW),
        Example(
            _BEFORE.replace("model.module.encode(x)", "model.module.layer(x)"),
            _BEFORE.replace("model.module.encode(x)", "model.module.layer(x)"),
            Level.MANUAL,
        ),
    ),
)
