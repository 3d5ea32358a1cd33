"""FS712: parameters that are read off a model and computed with."""

from __future__ import annotations

import ast

from ..facts.symbols import CONSTRUCTORS
from ..findings import Level
from ..migration import Migration
from ..queries.compiled_functions import is_compiled
from ..queries.guards import guard_of
from ..rewrites.helper_calls import around
from ..rule import Example, Outcome, Rule
from ..sites import NUMBER, PARAMETER, Site


def read_whole(site: Site, migration: Migration) -> Outcome | None:
    """The parameter is gathered where it is read, as every rank had it under DDP. FSDP1 showed each rank its own part."""
    assert isinstance(site.node, ast.expr)
    if not is_read_whole(site, migration):
        return None
    is_traced = is_compiled(site.file, site.node)
    if guard_of(site.file, site.node) is None and not is_traced:  # a guard further out holds the model whole
        return Outcome("what refuses a sharded parameter takes it whole", level=Level.OK)
    if any(other.symbol == NUMBER and other.receiver is site.node for other in migration.sites[site.file.path]):
        return None  # the number that is read off it is asked about
    name = migration.helper(site, "whole")
    call = site.file.parents[site.node]
    are_all = isinstance(call, ast.Call) and (site.file.external(call.func) or "").endswith(".parameters_to_vector")
    return Outcome(_COMPILED if is_traced else _WHOLE,
                   [around(site.file, site.node, f"map({name}, {{it}})" if are_all else f"{name}({{it}})")])  # fmt: skip


def is_read_whole(site: Site, migration: Migration) -> bool:
    """Whether a parameter is made whole at a site.

    A model under its own name may not be wrapped yet in a file that wraps nothing; if it is, mixing it with plain tensors
    raises.
    """
    assert site.sharding is not None
    if (site.sharding.wrappers or migration.wrapper_kinds) != {"ddp"} or migration.is_before_wrap(site):
        return False
    return not site.sharding.in_place or _wraps_here(site, migration) or bool(migration.guards.of(site.file, site.node))


def _wraps_here(site: Site, migration: Migration) -> bool:
    return any(other.symbol in CONSTRUCTORS and other.role == "call" for other in migration.sites[site.file.path])


_WHOLE = "what is computed with a parameter outside of the model takes it whole; its gradient is averaged"
_COMPILED = "torch.compile traces this: the parameter is gathered here, its gradient is averaged"

RULE = Rule(
    id="FS712",
    title="parameters read off a model",
    symbols=(PARAMETER,),
    roles=("read",),
    why="A sharded parameter does not mix with plain tensors, and outside of forwards nothing gathers it.",
    fallback=read_whole,
    examples=(
        Example(
            before=(
                "import torch\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options, queue):\n"
                "    model = DDP(net, **options)\n"
                "\n"
                "    @torch.compile\n"
                "    def scores():\n"
                "        return torch.mm(queue, model.module.prototypes.weight.t())\n"
                "\n"
                "    return scores()\n"
            ),
            after=(
                "import torch\n"
                "\n"
                "from fsdp2_helpers import shard_like_ddp, whole\n"
                "\n"
                "\n"
                "def f(net, options, queue):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "\n"
                "    @torch.compile\n"
                "    def scores():\n"
                "        return torch.mm(queue, whole(model.prototypes.weight).t())\n"
                "\n"
                "    return scores()\n"
            ),
            level=Level.REVIEW,
        ),
        Example(
            before=(
                "import torch\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options, queue):\n"
                "    model = DDP(net, **options)\n"
                "    return torch.mm(queue, model.module.prototypes.weight.t())\n"
            ),
            after=(
                "import torch\n"
                "\n"
                "from fsdp2_helpers import shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options, queue):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    return torch.mm(queue, model.prototypes.weight.t())\n"
            ),
            level=Level.OK,
        ),
    ),
)
