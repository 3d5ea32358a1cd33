"""``module.params``, ``param._is_flat_param``: members of FSDP1's modules and flat parameters."""

from __future__ import annotations

from collections.abc import Iterator

from ..analysis.symbols import FSDP1
from ..findings import Level
from ..introspection.flat_parameters import FLAT, PRIVATE, reads
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site

_SYMBOL = f"{FSDP1}.members_of_units"


def find(migration: Migration) -> Iterator[Site]:
    """Reads of what only FSDP1's modules and their flat parameters have; other rules answer for some names."""
    for view in migration.views():
        known = {site.node for site in migration.sites.get(view.path, ())}
        for node in reads(view):
            if node not in known:
                yield Site(view, node, f"{_SYMBOL}.{node.attr}", "hazard")


def check(site: Site, migration: Migration) -> Outcome:
    owner = "a flat parameter" if site.member in FLAT else "FSDP1's modules"
    return Outcome(
        Level.MANUAL,
        f"{site.member} is a member of {owner}: reading it off a model of FSDP2 raises AttributeError",
        _ADVICE.get(site.member, "An FSDP2 unit has parameters of their own names and shapes: go through named_parameters(), "
        "whose DTensors have to_local() and full_tensor(), or use the functions of torch.distributed.checkpoint.state_dict."),
    )  # fmt: skip


_ADVICE = {
    "sharding_strategy": "Keep the strategy in a variable of your own where the model is sharded.",
    "_streams": "Leave it out: FSDP2 keeps its streams to itself, and its units need not share them.",
    "_device_mesh": "Keep the mesh of the sharding, or read it off a parameter: next(model.parameters()).device_mesh.",
    "_exec_order_data": "Take it out: FSDP2 gathers in the order of the calls and keeps no limits; with hasattr the branch for "
    "other versions runs.",
    "params": "Use parameters(): every parameter is a DTensor of its own name and shape, to_local() is this rank's shard.",
}

_LOOP = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

for unit in FSDP.fsdp_modules(model):
    for param in unit.params:
        param.fill_(0)
"""

RULE = Rule(
    id="FS614",
    title="Members of FSDP1's modules and flat parameters",
    why=(
        "FSDP1 keeps the parameters of a unit in one flat parameter, and its module has attributes of its own. None of "
        "them exists on a model of FSDP2, where reading one raises."
    ),
    symbols=(f"{_SYMBOL}.*", *(f"{FSDP1}.{name}" for name in sorted(PRIVATE))),
    roles=("hazard", "use"),
    check=check,
    find=find,
    sources=("torch/distributed/fsdp/_flat_param.py: FlatParameter", "torch/distributed/fsdp/_fully_shard/_fully_shard.py"),
    examples=(
        Example(
            _LOOP,
            _LOOP.replace("FullyShardedDataParallel as FSDP", "FSDPModule").replace(
                "FSDP.fsdp_modules(model)", "[module for module in model.modules() if isinstance(module, FSDPModule)]"
            ),
            Level.MANUAL,
        ),
    ),
)
