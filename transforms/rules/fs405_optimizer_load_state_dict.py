"""``optimizer.load_state_dict()`` of an optimizer whose model is sharded."""

from __future__ import annotations

from collections.abc import Iterator

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state.loads import load_outcome, optimizer_loads
from ..state.strangers import is_of_stranger, optimizers_of_strangers
from ..state.unseen_loads import stranger_load

_SYMBOL = "torch.optim.Optimizer.load_state_dict"


def find(migration: Migration) -> Iterator[Site]:
    """Every optimizer.load_state_dict() of a group."""
    sites = {site.call for every in migration.sites.values() for site in every}
    for view, call, group in optimizer_loads(migration):
        if call in sites:
            continue
        yield Site(view, call, _SYMBOL, "hazard", group, tuple(view.values(call.func)), call)
    yield from optimizers_of_strangers(migration, "load_state_dict")


def check(site: Site, migration: Migration) -> Outcome:
    """The load becomes set_optimizer_state_dict."""
    if is_of_stranger(migration, site):
        return stranger_load(migration, site, "optimizer")
    return load_outcome(site, migration)


RULE = Rule(
    id="FS405",
    title="Loading optimizer state",
    why=(
        "optimizer.load_state_dict() puts full tensors beside sharded parameters: the load succeeds and the first step "
        "raises. set_optimizer_state_dict shards them. Files of FSDP1's optim_state_dict have the same names; with "
        "flat parameters they share one step counter, which then counts several times a step unless it is cloned."
    ),
    symbols=(_SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=(
        "https://docs.pytorch.org/docs/stable/distributed.checkpoint.html#torch.distributed.checkpoint.state_dict.set_optimizer_state_dict",
    ),
    examples=(
        Example(
            before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(state):
    model = FSDP(torch.nn.Linear(2, 2), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters())
    flattened = FSDP.optim_state_dict_to_load(model, optimizer, state)
    optimizer.load_state_dict(flattened)
""",
            after="""\
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict
from torch.distributed.fsdp import fully_shard


def main(state):
    model = torch.nn.Linear(2, 2)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    set_optimizer_state_dict(
        model, optimizer, state, options=StateDictOptions(full_state_dict=True)
    )
""",
        ),
        Example(
            before="""\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def load(optimizer, path):
    optimizer.load_state_dict(torch.load(path))


def main():
    model = DDP(torch.nn.Linear(2, 2))
""",
            after="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate


def local_shard(value, sharded):
    \"\"\"This rank's part of a whole tensor, laid out like a sharded one that has its shape.\"\"\"
    fits = isinstance(sharded, DTensor) and getattr(value, "shape", None) == sharded.shape
    if not fits or isinstance(value, DTensor):
        return value
    mesh = sharded.device_mesh
    whole = DTensor.from_local(value, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return whole.redistribute(placements=sharded.placements)


def optimizer_shards(optimizer, state_dict):
    \"\"\"Full state for an optimizer, with this rank's shards where its parameters are sharded.\"\"\"
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
    for number, parameter in zip(numbers, parameters):
        entries = state_dict["state"].get(number, {})
        entries.update({name: local_shard(value, parameter) for name, value in entries.items()})
    return state_dict


def load(optimizer, path):
    optimizer.load_state_dict(optimizer_shards(optimizer, torch.load(path)))


def main():
    model = torch.nn.Linear(2, 2)
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    fully_shard(model)
""",
            level=Level.REVIEW,
            note="whatever may come to a function: files keep their format",
        ),
    ),
    proof=("nanogpt_ddp", "finetuning_package", "full_optimizer_resume"),
)
