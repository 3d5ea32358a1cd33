"""FS701: numbers that are computed from parameters or gradients and read on every rank."""

from __future__ import annotations

import ast

from ..findings import Form, Level
from ..flow.values import Derived
from ..migration import Migration
from ..queries.local_values import made_for
from ..rewrites.helper_calls import around
from ..rule import Example, Outcome, Rule
from ..sites import NUMBER, Site
from .fs712_parameters_read import is_of_whole_parameters

_WATCH = "wandb.watch"
_TEXTS = frozenset({"__repr__", "__str__", "__format__", "extra_repr"})
_FILLS = frozenset({"append", "extend", "insert"})


def read_whole(site: Site, migration: Migration) -> Outcome | None:
    """What is read is gathered first, as every rank had it under DDP. FSDP1 showed each rank its own part."""
    if site.symbol == _WATCH:
        return _watched(site, migration)
    assert site.sharding is not None and site.receiver is not None
    if migration.is_before_wrap(site):
        return None
    if site.sharding.wrappers == {"fsdp1"}:
        return _own_part(site, migration)
    if (site.sharding.wrappers or migration.wrapper_kinds) != {"ddp"}:
        return None
    if getattr(site.file.function(site.node), "name", "") in _TEXTS:
        return None  # nobody knows which ranks print the model
    if migration.guards.of(site.file, site.node):  # a gather that only some ranks make would hang
        held = any(item.node is site.node and item.thing for hidden in migration.hidden.values() for item in hidden)
        return Outcome(_HELD, level=Level.OK) if held else Outcome(_OF_SOME, level=Level.REVIEW, form=Form.NOTE)
    made = _made(site)
    if is_of_whole_parameters(site, migration, made or site.receiver):
        return Outcome("what is read here is computed from parameters that are whole", level=Level.OK)
    if made is not None and _is_read_before(site, migration):
        return Outcome("what is read here is whole since it was computed", level=Level.OK)
    name, read = migration.helper(site, "whole"), made or site.receiver
    if isinstance(read, ast.GeneratorExp):
        read = read.elt
    return Outcome("a norm or another number of sharded tensors is that of the whole: each rank would read its own part's",
                   [around(site.file, read, f"{name}({{it}})")])  # fmt: skip


def _watched(site: Site, migration: Migration) -> Outcome | None:
    """Its hooks sit on sharded parameters, which get their gradients without any hook being called."""
    models = site.call.args[:1] if site.call is not None else []
    if not any(migration.sharding.of(site.file, model).wrappers for model in models):
        return None
    return Outcome("wandb.watch sees no gradients of sharded parameters, and parameters by the parts of its rank",
                   level=Level.MANUAL, form=Form.NOTE,
                   advice="Take it out, and log wandb.Histogram(whole(p.grad)) on all ranks where you need it.")  # fmt: skip


def _own_part(site: Site, migration: Migration) -> Outcome | None:
    """FSDP1 showed plain tensors, each rank's own, of which arrays are made. A number is that of the part anyway."""
    assert site.receiver is not None
    is_array = isinstance(site.call, ast.Call) and getattr(site.call.func, "attr", "") in ("numpy", "tolist", "asarray", "array")
    kinds = {v.kind for v in site.file.values(site.receiver) if isinstance(v, Derived)}
    if not (is_array or site.call is None) or not kinds <= {"parameters", "gradients"}:
        return None
    name = migration.helper(site, "local_part")
    return Outcome("arrays are made of this rank's part, as under FSDP1", [around(site.file, site.receiver, f"{name}({{it}})")])


_HELD = "every rank that comes here holds the model whole"
_OF_SOME = "only some ranks come here, so that nothing is gathered: what is read is the number of a rank's own part"


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


RULE = Rule(
    id="FS701",
    title="numbers read off parameters",
    symbols=(NUMBER, _WATCH),
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
