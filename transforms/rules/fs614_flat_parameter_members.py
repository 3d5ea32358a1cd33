"""``module.params``, ``param._is_flat_param``: members of FSDP1's modules and flat parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.symbols import FSDP1
from ..findings import Level
from ..introspection.flat_parameters import FLAT, PRIVATE, RUNTIME, reads
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site

_SYMBOL = f"{FSDP1}.members_of_units"
_FLAT_PARAMETER = "torch.distributed.fsdp.FlatParameter"


def find(migration: Migration) -> Iterator[Site]:
    """Reads of what only FSDP1's modules and their flat parameters have; other rules answer for some names."""
    for view in migration.views():
        known = {site.node for site in migration.sites.get(view.path, ())}
        for node in reads(view):
            if node not in known:
                yield Site(view, node, f"{_SYMBOL}.{node.attr}", "hazard")


def check(site: Site, migration: Migration) -> Outcome:
    if _is_given_to_runtime(site):
        return Outcome(Level.SAFE, "part of a call of FSDP1's runtime, which has a finding of its own", silent=True)
    if site.symbol == _FLAT_PARAMETER:
        return Outcome(
            Level.MANUAL,
            "FSDP2 has no FlatParameter: a test for one is answered with no, without an error",
            "Ask isinstance(parameter, torch.distributed.tensor.DTensor) where sharded parameters are meant: each has its own "
            "name and shape, and is not of one dimension as a flat one is.",
            holds=site.role != "annotation",
        )
    owner = "a flat parameter" if site.member in FLAT else "FSDP1's modules"
    if isinstance(site.node, ast.Attribute) and isinstance(site.node.ctx, ast.Store):
        return Outcome(
            Level.MANUAL,
            f"{site.member} is a member of {owner}: setting it on a model of FSDP2 changes nothing, without an error",
            "Take the assignment out: what fully_shard has of the kind is said in its call.",
            holds=site.member not in _PACE,
        )
    return Outcome(
        Level.MANUAL,
        f"{site.member} is a member of {owner}: reading it off a model of FSDP2 raises AttributeError",
        _ADVICE.get(site.member, "An FSDP2 unit has parameters of their own names and shapes: go through named_parameters(), "
        "whose DTensors have to_local() and full_tensor(), or use the functions of torch.distributed.checkpoint.state_dict."),
    )  # fmt: skip


def _is_given_to_runtime(site: Site) -> bool:
    """Whether a member is an argument of a private function of FSDP1's runtime."""
    calls = [node for node in site.view.ancestors(site.node) if isinstance(node, ast.Call)]
    return any((site.view.external(call.func) or "").startswith(RUNTIME) for call in calls)


_PACE = frozenset({"backward_prefetch", "forward_prefetch", "limit_all_gathers"})
"""Settings that decide when parameters are gathered, never what is computed."""
_MORE = sorted(_PACE | {"flat_param", "sharding_strategy", "training_state"})
_ADVICE = {
    "_is_root": "Leave it out: FSDP2 has no such mark, and the root is the module of the last fully_shard call.",
    "_handle": "Leave the flat parameter alone: reshard() and unshard() of the module free and gather what it holds.",
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
    symbols=(_FLAT_PARAMETER, f"{_SYMBOL}.*", f"{FSDP1}._*", *(f"{FSDP1}.{name}" for name in (*sorted(PRIVATE), *_MORE))),
    roles=("hazard", "use", "isinstance", "annotation", "reference", "base"),
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
