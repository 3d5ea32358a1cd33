"""FS711: collectives of `torch.distributed` on parameters and gradients."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..findings import Level
from ..flow.library import TENSORS
from ..flow.values import Derived
from ..migration import Migration
from ..queries.file import File
from ..queries.local_values import made_for
from ..queries.order import is_before_wrap
from ..queries.saved_models import given_to
from ..rewrites.helper_calls import around
from ..rule import Example, Outcome, Rule
from ..sites import Site

_NAMES = ("broadcast", "all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "gather", "reduce_scatter_tensor")
_SHARDED = frozenset({"parameters", "gradients"})


def as_before(site: Site, migration: Migration) -> Outcome | None:
    """The collective gets what it got: whole tensors under DDP, a rank's own part of them under FSDP1."""
    assert site.call is not None
    given = [a for a in given_to(site.call) if _kinds(site.file, a) & TENSORS]
    if not given:
        return None
    owners = [v.owner for a in given for v in site.file.values(a) if isinstance(v, Derived) and v.kind in TENSORS]
    found = migration.sharding.of_owners(owners, path=site.file.path)  # type: ignore[arg-type]
    if len(found.wrappers) != 1 or migration.runs_before_wraps(site.file, site.call):
        return None
    if is_before_wrap(migration.program, site.file, site.call, found):
        return None
    is_ddp = found.wrappers == {"ddp"}
    if any("statistic" in _kinds(site.file, a) for a in given):
        return _computed(site, migration, is_ddp)
    if is_ddp:
        name = migration.helper(site, "on_whole")
        return Outcome("the collective works on whole tensors, and what it writes is kept in the shards",
                       [around(site.file, site.call.func, f"{name}({{it}})")])  # fmt: skip
    name = migration.helper(site, "local_part")
    return Outcome("the collective works on this rank's part, as it did under FSDP1",
                   [around(site.file, a, f"{name}({{it}})") for a in given])  # fmt: skip


def _computed(site: Site, migration: Migration, is_ddp: bool) -> Outcome | None:
    """Numbers of parameters are of a rank's own part under FSDP1, and whole under DDP from where the function computes them."""
    assert site.call is not None
    if not is_ddp:
        if migration.acts_in_parts(site.file.path):
            return Outcome("what comes here is of this rank's part, as all is that is computed with parameters", level=Level.OK)
        return _unseen()
    if migration.needs(site.file.path).computations.exist():
        return Outcome("what comes here is plain, as all is that is computed with parameters", level=Level.OK)
    given = [a for a in given_to(site.call) if "statistic" in _kinds(site.file, a)]
    name = migration.helper(site, "whole")
    made = [made_for(site.file, a) for a in given]
    if None not in made:
        changes = [around(site.file, value, f"{name}({{it}})") for value in made if value is not None]
        return Outcome("what the collective adds up is of the whole tensors, as under DDP", changes)
    function = site.file.function(site.node)
    others = (s for s in migration.sites.get(site.file.path, ()) if s.symbol in RULE.symbols and _computes(s))
    if next((s for s in others if s.file.function(s.node) is function), site) is not site:
        return Outcome("what comes here is made whole where it is computed", level=Level.OK)
    computed = _computations(site.file, function or site.file.tree)
    changes = [around(site.file, call, f"{name}({{it}})") for call in computed]
    if not changes:
        return _unseen()
    return Outcome("what the collective adds up is computed from the whole tensors, as under DDP", changes)


def _unseen() -> Outcome:
    return Outcome("numbers of sharded tensors come here, which no collective takes: make them plain where they are computed",
                   level=Level.MANUAL, advice="To add up each rank's part, to_local(); full_tensor() is of all ranks already: "
                   "leave the collective out then.")  # fmt: skip


def _computes(site: Site) -> bool:
    return site.call is not None and any("statistic" in _kinds(site.file, a) for a in given_to(site.call))


def _computations(file: File, scope: ast.AST) -> Iterator[ast.Call]:
    """Where numbers are computed from parameters and gradients."""
    for call in file.nodes(ast.Call):
        if scope in file.ancestors(call) and "statistic" in _kinds(file, call):
            tensors = [call.func.value] if isinstance(call.func, ast.Attribute) else []
            if any(_kinds(file, tensor) and _kinds(file, tensor) <= _SHARDED for tensor in (*tensors, *call.args)):
                yield call


def _kinds(file: File, node: ast.AST) -> frozenset[str]:
    return frozenset(v.kind for v in file.values(node) if isinstance(v, Derived))


RULE = Rule(
    id="FS711",
    title="collectives on parameters",
    symbols=tuple(f"torch.distributed.{name}" for name in _NAMES),
    roles=("call",),
    why="Collectives of torch.distributed do not take the DTensors that parameters and gradients of FSDP2 are.",
    fallback=as_before,
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
                "\n"
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
        Example(
            before=(
                "import torch\n"
                "import torch.distributed as dist\n"
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = FSDP(net, **options)\n"
                "    total = torch.stack([p.grad.float().pow(2).sum() for p in model.parameters()]).sum()\n"
                "    dist.all_reduce(total)\n"
                "    return total.sqrt()\n"
            ),
            after=(
                "import torch\n"
                "import torch.distributed as dist\n"
                "\n"
                "from fsdp2_helpers import shard_like_fsdp1\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_fsdp1(net, **options)\n"
                "    total = torch.stack([p.grad.float().pow(2).sum() for p in model.parameters()]).sum()\n"
                "    dist.all_reduce(total)\n"
                "    return total.sqrt()\n"
            ),
            level=Level.OK,
        ),
    ),
)
