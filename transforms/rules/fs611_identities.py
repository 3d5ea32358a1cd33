"""FS611: `id(p)` of parameters."""

from __future__ import annotations

import ast

from ..findings import Level
from ..migration import Migration
from ..queries.identity_reads import IDENTITY, parameters_identified
from ..queries.order import is_before_wrap
from ..rewrites.helper_calls import name_instead
from ..rule import Example, Outcome, Rule
from ..sites import Site


def as_before(site: Site, migration: Migration) -> Outcome | None:
    """Where identities from before the wrap may be looked up behind it, a sharded parameter answers with the one of then."""
    found = parameters_identified(migration.sharding, site.file, site.node)
    if found is None or not migration.options.wraps:
        return None
    if _is_before(site, migration) or not any(_is_before(other, migration) for other in _others(site, migration)):
        return Outcome("the identities that it meets were taken on the same side of the wrap", level=Level.OK)
    function = site.node.func if isinstance(site.node, ast.Call) else site.node
    assert isinstance(function, ast.expr)
    change = name_instead(site.file, function, migration.helper(site, "id_before_sharding"))
    return Outcome("sharding makes new parameters: they answer with the identity of the one before", [change])


def _others(site: Site, migration: Migration) -> list[Site]:
    paths = migration.programs.sharing_entries(site.file.path)
    return [other for path in paths for other in migration.sites.get(path, ()) if other.symbol == IDENTITY and other is not site]


def _is_before(site: Site, migration: Migration) -> bool:
    found = parameters_identified(migration.sharding, site.file, site.node)
    if found is None:
        return False
    return migration.runs_before_wraps(site.file, site.node) or is_before_wrap(migration.program, site.file, site.node, found)


RULE = Rule(
    id="FS611",
    title="identities of parameters",
    symbols=(IDENTITY,),
    roles=("call", "value"),
    why="Sharding puts other objects in the parameters' places: what was remembered by id() before it matches none of them.",
    fallback=as_before,
    examples=(
        Example(
            before=(
                "import torch\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(options):\n"
                "    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))\n"
                "    head = {id(p) for p in net[1].parameters()}\n"
                "    model = DDP(net, **options)\n"
                "    return torch.optim.SGD([p for p in model.parameters() if id(p) in head], lr=0.1)\n"
            ),
            after=(
                "import torch\n"
                "\n"
                "from fsdp2_helpers import id_before_sharding, shard_like_ddp\n"
                "\n"
                "\n"
                "def f(options):\n"
                "    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))\n"
                "    head = {id(p) for p in net[1].parameters()}\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    return torch.optim.SGD([p for p in model.parameters() if id_before_sharding(p) in head], lr=0.1)\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
