"""enable_wrap and wrap: modules that are wrapped while a model is built."""

from __future__ import annotations

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sharding.policy_definitions import WRAP
from ..sites import Site

_BUILT = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        with enable_wrap(wrapper_cls=FSDP):
            self.layer = wrap(nn.Linear(8, 8))
"""


def check(site: Site, migration: Migration) -> Outcome:
    """Left alone: when the modules may be sharded depends on what else the constructor does with them."""
    return Outcome(
        Level.MANUAL,
        f"{site.member} shards modules while the model is still being built",
        "Build the model without it, then call fully_shard on the modules that wrap() was given, from the "
        "leaves up, and "
        "on the model last; wrap(wrap(x)) is one fully_shard(x, reshard_after_forward=True).",
        holds=True,
    )


RULE = Rule(
    id="FS140",
    title="enable_wrap and wrap",
    why=(
        "wrap(module) shards at once, inside the constructor. With fully_shard that comes too early: "
        "initialisation, tied "
        "weights, an optimizer or a broadcast that follow would see sharded parameters."
    ),
    symbols=(f"{WRAP}enable_wrap", f"{WRAP}enable_wrap(*", f"{WRAP}wrap", f"{WRAP}wrap(*"),
    roles=("call", "reference", "keyword"),
    check=check,
    examples=(Example(before=_BUILT, after=_BUILT, level=Level.MANUAL),),
)
