"""Subclasses of the wrappers."""

from __future__ import annotations

from ..analysis.symbols import DDP, FSDP1
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site


def check(site: Site, migration: Migration) -> Outcome:
    return Outcome(
        Level.MANUAL,
        f"a subclass of {site.member}, whose methods FSDP2 has no place for",
        "Move its methods to the model (register_fsdp_forward_method(model, name) for those that compute), what its "
        "constructor sets to the place of the wrap, and replace its calls by fully_shard(model).",
        holds=True,
    )


_CODE = (
    "from torch.nn.parallel import DistributedDataParallel\n\n\nclass Wrapper(DistributedDataParallel):\n"
    "    def encode(self, x):\n        return self.module.encode(x)\n"
)

RULE = Rule(
    id="FS605",
    title="Subclasses of the wrappers",
    why="FSDP2 has no wrapper to derive from: fully_shard gives the model's own class a new base.",
    symbols=(FSDP1, DDP),
    roles=("base",),
    check=check,
    examples=(Example(_CODE, _CODE, Level.MANUAL),),
)
