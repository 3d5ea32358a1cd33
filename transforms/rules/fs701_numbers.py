"""FS701: numbers that are computed from parameters or gradients and read on every rank."""

from __future__ import annotations

import ast

from ..findings import Form, Level
from ..flow.values import Derived
from ..migration import Migration
from ..rewrites.helper_calls import around
from ..rule import Example, Outcome, Rule
from ..sites import NUMBER, Site

_WATCH = "wandb.watch"
_TEXTS = frozenset({"__repr__", "__str__", "__format__", "extra_repr"})


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
        held = any(item.node is site.node and item.is_held for hidden in migration.hidden.values() for item in hidden)
        return Outcome(_HELD, level=Level.OK) if held else Outcome(_OF_SOME, level=Level.REVIEW, form=Form.NOTE)
    return Outcome("what is read here is of the whole tensor, as everything is that is computed with parameters",
                   level=Level.OK)  # fmt: skip


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
                "    return sum((p ** 2).sum().item() for p in model.parameters())\n"
            ),
            after=(
                "import torch\n"
                "\n"
                "from fsdp2_helpers import shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options, x):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    model(x).sum().backward()\n"
                "    return sum((p ** 2).sum().item() for p in model.parameters())\n"
            ),
            level=Level.OK,
        ),
        Example(
            before=(
                "import numpy as np\n"
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = FSDP(net, **options)\n"
                "    return [np.asarray(p.detach()) for p in model.parameters()]\n"
            ),
            after=(
                "import numpy as np\n"
                "\n"
                "from fsdp2_helpers import local_part, shard_like_fsdp1\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_fsdp1(net, **options)\n"
                "    return [np.asarray(local_part(p.detach())) for p in model.parameters()]\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
