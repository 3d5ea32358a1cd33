"""FS711: collectives of `torch.distributed` on parameters and gradients."""

from __future__ import annotations

from ..findings import Level
from ..flow.library import TENSORS
from ..flow.values import Derived
from ..migration import Migration
from ..queries.order import is_before_wrap
from ..queries.saved_models import given_to
from ..rewrites.helper_calls import around
from ..rule import Example, Outcome, Rule
from ..sites import Site

_NAMES = ("broadcast", "all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "gather", "reduce_scatter_tensor")


def on_whole(site: Site, migration: Migration) -> Outcome | None:
    """The collective works on whole tensors, as under DDP."""
    assert site.call is not None
    values = [v for argument in given_to(site.call) for v in site.file.values(argument)]
    owners = [v.owner for v in values if isinstance(v, Derived) and v.kind in TENSORS]
    found = migration.sharding.of_owners(owners)  # type: ignore[arg-type]
    if found.wrappers != {"ddp"} or migration.runs_before_wraps(site.file, site.call):
        return None
    if is_before_wrap(migration.program, site.file, site.call, found):
        return None
    name = migration.helper(site, "on_whole")
    return Outcome("the collective works on whole tensors, and what it writes is kept in the shards",
                   [around(site.file, site.call.func, f"{name}({{it}})")])  # fmt: skip


RULE = Rule(
    id="FS711",
    title="collectives on parameters",
    symbols=tuple(f"torch.distributed.{name}" for name in _NAMES),
    roles=("call",),
    why="Collectives of torch.distributed do not take the DTensors that parameters and gradients of FSDP2 are.",
    fallback=on_whole,
    examples=(
        Example(
            before=(
                "import torch.distributed as dist\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = DDP(net, **options)\n"
                "    for p in model.parameters():\n"
                "        dist.broadcast(p.data, src=0)\n"
            ),
            after=(
                "import torch.distributed as dist\n"
                "from fsdp2_helpers import on_whole, shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    for p in model.parameters():\n"
                "        on_whole(dist.broadcast)(p.data, src=0)\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
