"""Subclasses of the wrappers."""

from __future__ import annotations

from ..analysis.symbols import DDP, FSDP1
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sharding.subclass_findings import definition_outcome
from ..sites import Site


def check(site: Site, migration: Migration) -> Outcome:
    return definition_outcome(site)


_CODE = (
    "from torch.nn.parallel import DistributedDataParallel\n\n\nclass Wrapper(DistributedDataParallel):\n"
    "    def encode(self, x):\n        return self.module.encode(x)\n"
)

_FSDP1 = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Scaled(FSDP):
    def forward(self, x):
        return super().forward(x) / 2


def main(net, x):
    model = Scaled(net, use_orig_params=True)
    with model.no_sync():
        model(x).sum().backward()
"""

RULE = Rule(
    id="FS605",
    title="Subclasses of the wrappers",
    why=(
        "FSDP2 has no wrapper to derive from: fully_shard gives the model's own class a new base. What a subclass of DDP "
        "wraps stays under DDP, which is not deprecated, and all that uses it stays right; what a subclass of FSDP1 wraps "
        "waits with all that uses it. Models that other calls wrap are migrated."
    ),
    symbols=(FSDP1, DDP),
    roles=("base",),
    check=check,
    examples=(
        Example(_CODE, _CODE, Level.MANUAL, note="what it wraps stays under DDP, and the uses of that are right as they are"),
        Example(_FSDP1, _FSDP1, Level.MANUAL, note="fully_shard would lose what the subclass does"),
    ),
)
