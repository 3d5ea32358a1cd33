"""FS712: parameters that are read off a model and computed with."""

from __future__ import annotations

import ast

from ..facts.symbols import CONSTRUCTORS
from ..findings import Level
from ..flow.library import TENSORS
from ..flow.values import Derived
from ..migration import Migration
from ..queries.local_values import made_for
from ..rewrites.helper_calls import around
from ..rule import Example, Outcome, Rule
from ..sites import NUMBER, PARAMETER, Site


def read_whole(site: Site, migration: Migration) -> Outcome | None:
    """The parameter is gathered where it is read, as every rank had it under DDP. FSDP1 showed each rank its own part."""
    assert isinstance(site.node, ast.expr)
    if not is_read_whole(site, migration):
        return None
    if any(other.symbol == NUMBER and other.receiver is site.node for other in migration.sites[site.file.path]):
        return None  # the number that is read off it is asked about
    name = migration.helper(site, "whole")
    call = site.file.parents[site.node]
    are_all = isinstance(call, ast.Call) and (site.file.external(call.func) or "").endswith(".parameters_to_vector")
    return Outcome("what is computed with a parameter outside of the model takes it whole; its gradient is averaged",
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


def is_of_whole_parameters(site: Site, migration: Migration, tensor: ast.expr) -> bool:
    """Whether all that is sharded in an expression is made whole where it is read off a model."""
    read = (other for other in migration.sites[site.file.path] if other.symbol == PARAMETER)
    whole = {other.node for other in read if is_read_whole(other, migration)}
    pending: list[ast.AST] = [tensor]
    seen: set[ast.AST] = set()
    found = False
    while pending:
        node = pending.pop()
        if node in whole and node is not tensor:
            found = True
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and _may_be_sharded(site, node):
            made = made_for(site.file, node)
            if made is None or made in seen:
                return False
            seen.add(made)
            pending.append(made)
        else:
            pending += ast.iter_child_nodes(node)
    return found


def _may_be_sharded(site: Site, name: ast.Name) -> bool:
    return any(isinstance(v, Derived) and v.kind in TENSORS for v in site.file.values(name))


def _wraps_here(site: Site, migration: Migration) -> bool:
    return any(other.symbol in CONSTRUCTORS and other.role == "call" for other in migration.sites[site.file.path])


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
                "    return torch.mm(queue, model.module.prototypes.weight.t())\n"
            ),
            after=(
                "import torch\n"
                "from fsdp2_helpers import shard_like_ddp, whole\n"
                "\n"
                "\n"
                "def f(net, options, queue):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    return torch.mm(queue, whole(model.prototypes.weight).t())\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
