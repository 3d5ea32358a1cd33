"""FS701: numbers that are computed from parameters or gradients and read on every rank."""

from __future__ import annotations

import ast

from ..findings import Level
from ..flow.library import TENSORS
from ..flow.values import Derived
from ..migration import Migration
from ..queries.local_values import made_for
from ..rewrites.helper_calls import around
from ..rule import Example, Outcome, Rule
from ..sites import NUMBER, PARAMETER, Site
from .fs712_parameters_read import is_read_whole

_TEXTS = frozenset({"__repr__", "__str__", "__format__", "extra_repr"})
_FILLS = frozenset({"append", "extend", "insert"})


def read_whole(site: Site, migration: Migration) -> Outcome | None:
    """What is read is gathered first, as every rank had it under DDP. FSDP1 showed each rank its own part."""
    assert site.sharding is not None and site.receiver is not None
    if (site.sharding.wrappers or migration.wrapper_kinds) != {"ddp"} or migration.is_before_wrap(site):
        return None
    if getattr(site.file.function(site.node), "name", "") in _TEXTS:
        return None  # nobody knows which ranks print the model
    if migration.guards.of(site.file, site.node):
        return None  # a gather that only some ranks make would hang: the run tells
    made = _made(site)
    if _is_of_whole_parameters(site, migration, made or site.receiver):
        return Outcome("what is read here is computed from parameters that are whole", level=Level.OK)
    if made is not None and _is_read_before(site, migration):
        return Outcome("what is read here is whole since it was computed", level=Level.OK)
    name, read = migration.helper(site, "whole"), made or site.receiver
    if isinstance(read, ast.GeneratorExp):
        read = read.elt
    return Outcome("a norm or another number of sharded tensors is that of the whole: each rank would read its own part's",
                   [around(site.file, read, f"{name}({{it}})")])  # fmt: skip


def _made(site: Site) -> ast.expr | None:
    """What a name that is read was assigned, if nothing is put into it afterwards, and it holds what is computed alone."""
    assert site.receiver is not None
    scope = site.file.function(site.receiver) or site.file.tree
    text = ast.unparse(site.receiver)
    filled = (n.value for n in ast.walk(scope) if isinstance(n, ast.Attribute) and n.attr in _FILLS)
    if any(ast.unparse(each) == text for each in filled):
        return None
    made = made_for(site.file, site.receiver)
    held = site.file.values(made.elt) if isinstance(made, ast.ListComp | ast.GeneratorExp) else ()
    return None if any(isinstance(v, Derived) and v.kind != "statistic" for v in held) else made


def _is_read_before(site: Site, migration: Migration) -> bool:
    """Whether another site reads the same name first, and has made it whole."""
    made = _made(site)
    others = (s for s in migration.sites.get(site.file.path, ()) if s.symbol == NUMBER and s is not site)
    place = site.file.source.span(site.node)
    return any(made_for(other.file, other.receiver) is made and site.file.source.span(other.node) < place for other in others)


def _is_of_whole_parameters(site: Site, migration: Migration, tensor: ast.expr) -> bool:
    """Whether all that is sharded in an expression is read off a model by name, which FS712 makes whole."""
    read = (other for other in migration.sites[site.file.path] if other.symbol == PARAMETER)
    whole = {other.node for other in read if is_read_whole(other, migration)}
    pending: list[ast.AST] = [tensor]
    found = False
    while pending:
        node = pending.pop()
        if node in whole and node is not tensor:
            found = True
        elif isinstance(node, ast.Name) and any(isinstance(v, Derived) and v.kind in TENSORS for v in site.file.values(node)):
            return False
        else:
            pending += ast.iter_child_nodes(node)
    return found


RULE = Rule(
    id="FS701",
    title="numbers read off parameters",
    symbols=(NUMBER,),
    roles=("call",),
    why="`.item()` of a norm over a sharded tensor is the number of this rank's part, without an error.",
    fallback=read_whole,
    examples=(
        Example(
            before=(
                "import torch\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options, x):\n"
                "    model = DDP(net, **options)\n"
                "    model(x).sum().backward()\n"
                "    return sum(torch.norm(p.grad).item() ** 2 for p in model.parameters())\n"
            ),
            after=(
                "import torch\n"
                "from fsdp2_helpers import shard_like_ddp, whole\n"
                "\n"
                "\n"
                "def f(net, options, x):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    model(x).sum().backward()\n"
                "    return sum(whole(torch.norm(p.grad)).item() ** 2 for p in model.parameters())\n"
            ),
            level=Level.REVIEW,
        ),
        Example(
            before=(
                "import torch\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options, x):\n"
                "    model = DDP(net, **options)\n"
                "    model(x).sum().backward()\n"
                "    return torch.norm(torch.tensor([torch.norm(p.grad) for p in model.parameters()]))\n"
            ),
            after=(
                "import torch\n"
                "from fsdp2_helpers import shard_like_ddp, whole\n"
                "\n"
                "\n"
                "def f(net, options, x):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    model(x).sum().backward()\n"
                "    return torch.norm(torch.tensor(whole([torch.norm(p.grad) for p in model.parameters()])))\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
