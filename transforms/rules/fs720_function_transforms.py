"""FS720: torch.func's transforms of functions that run a model: `vmap(grad(loss_of))(parameters, x, y)`."""

from __future__ import annotations

import ast

from ..findings import Level
from ..migration import Migration
from ..rewrites.helper_calls import around
from ..rule import Example, Outcome, Rule
from ..sites import Site
from .fs715_functional_calls import RULE as FUNCTIONAL_CALLS

_TRANSFORMS = ("grad", "grad_and_value", "vmap", "jacrev", "jacfwd", "hessian")
_SYMBOLS = (*(f"torch.func.{name}" for name in _TRANSFORMS), "torch.vmap")


def on_whole(site: Site, migration: Migration) -> Outcome | None:
    """What the transformed function is given is gathered in front of it: inside, tensors do not show that they are sharded."""
    file, call = site.file, site.call
    if call is None or migration.runs_before_wraps(file, call) or not _runs_models(site, migration):
        return None
    if any(isinstance(a, ast.Call) and (file.external(a.func) or "") in _SYMBOLS for a in file.ancestors(call)):
        return None  # the outermost one is
    name = migration.helper(site, "on_whole_tensors")
    return Outcome(_MESSAGE, [around(file, call, f"{name}({{it}})")])


def _runs_models(site: Site, migration: Migration) -> bool:
    """Whether a model that may be sharded is called with given weights in the same file."""
    calls = (s for s in migration.sites[site.file.path] if s.symbol in FUNCTIONAL_CALLS.symbols and s.call is not None)
    return any(s.call.args and migration.sharding.of(s.file, s.call.args[0]).possible for s in calls if s.call is not None)


_MESSAGE = "sharded parameters that the function is given are gathered first: inside of it nothing shows that they are sharded"
_BEFORE = (
    "from torch.func import functional_call, grad, vmap\n"
    "from torch.nn.parallel import DistributedDataParallel as DDP\n"
    "\n"
    "\n"
    "def f(net, options, xs):\n"
    "    model = DDP(net, **options)\n"
    "\n"
    "    def loss_of(weights, x):\n"
    "        return functional_call(model.module, weights, (x,)).sum()\n"
    "\n"
    "    weights = {name: p.detach() for name, p in model.module.named_parameters()}\n"
    "    return vmap(grad(loss_of), in_dims=(None, 0))(weights, xs)\n"
)

RULE = Rule(
    id="FS720",
    title="transforms of functions",
    symbols=_SYMBOLS,
    roles=("call",),
    why="torch.func hands a function tensors of its own kind around those given: sharded ones meet plain ones and raise.",
    fallback=on_whole,
    examples=(
        Example(
            before=_BEFORE,
            after=_BEFORE.replace("from torch.func import functional_call, grad, vmap\n", "from torch.func import grad, vmap\n")
            .replace(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n",
                "\nfrom fsdp2_helpers import call_with_weights, on_whole_tensors, shard_like_ddp\n",
            )
            .replace("DDP(net", "shard_like_ddp(net")
            .replace("model.module", "model")
            .replace("functional_call(model", "call_with_weights(model")
            .replace("vmap(grad(loss_of), in_dims=(None, 0))", "on_whole_tensors(vmap(grad(loss_of), in_dims=(None, 0)))"),
            level=Level.REVIEW,
        ),
    ),
)
