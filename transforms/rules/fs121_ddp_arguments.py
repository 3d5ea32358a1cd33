"""Arguments of the DDP constructor."""

from __future__ import annotations

from ..analysis.symbols import DDP
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sharding.data_parallel import data_parallel_of, spread_outcome
from ..sites import Site
from . import fs120_ddp


def check(site: Site, migration: Migration) -> Outcome:
    assert site.call is not None and site.keyword is not None
    ddp = data_parallel_of(migration, site.view, site.call, site.group)
    name = site.keyword.arg
    if name == "module":
        return Outcome(Level.SAFE, "the model itself", silent=True)
    if name is None:
        return spread_outcome(ddp, site.keyword)
    if name not in ddp.outcomes:
        return Outcome(Level.SAFE, "part of the constructor", silent=True)
    return ddp.outcomes[name]


_EXAMPLE = fs120_ddp.RULE.examples[0]

RULE = Rule(
    id="FS121",
    title="Arguments of DistributedDataParallel",
    why=(
        "Most of them tune what FSDP2 does otherwise or not at all (buckets, devices, graph analysis) and go without "
        "effect on numbers. process_group and device_mesh become the mesh. find_unused_parameters needs a look: "
        "parameters that no rank uses behave the same, ranks that use different ones do not."
    ),
    symbols=(DDP + "(*",),
    roles=("keyword",),
    check=check,
    sources=("torch/nn/parallel/distributed.py: DistributedDataParallel.__init__",),
    proof=("nanogpt_ddp", "gan_ddp", "imagenet_ddp", "model_without_ddp", "ddp_keywords"),
    examples=(
        Example(
            _EXAMPLE.before.replace("device_ids=[local_rank]", "device_ids=[local_rank], bucket_cap_mb=50"),
            _EXAMPLE.after,
        ),
        Example(
            _EXAMPLE.before.replace("device_ids=[local_rank]", "find_unused_parameters=True"),
            _EXAMPLE.after,
            Level.REVIEW,
        ),
    ),
)
