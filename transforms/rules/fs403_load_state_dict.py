"""FS403: `load_state_dict()` of models, optimizers, and what may be either."""

from __future__ import annotations

import ast

from ..facts.symbols import FSDP1
from ..findings import Level
from ..migration import Migration
from ..queries.local_values import resolved
from ..rewrites.helper_calls import method_instead
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state_functions import has_state, loader_of_state


def distributed(site: Site, migration: Migration) -> Outcome | None:
    """Full state is distributed over the ranks, whoever wrote it."""
    assert site.receiver is not None and site.sharding is not None
    if not has_state(site, migration):
        return None
    if migration.is_before_wrap(site):
        return Outcome("the model is still plain here", level=Level.OK)
    if site.call is not None and not site.call.args and not site.call.keywords:
        return None
    if _is_sharded_already(site):
        return Outcome("the function that made this state has sharded it", level=Level.OK)
    name = loader_of_state(site, migration)
    if name is None:
        return Outcome("the sharded model, and its optimizers, take whole tensors", level=Level.OK)
    function = migration.helper(site, name)
    change = method_instead(site.file, site.node, site.call, function, lambda: migration.helper(site, "as_method"))
    return Outcome(_DISTRIBUTED[name], [change]) if change is not None else None


def _is_sharded_already(site: Site) -> bool:
    """Whether an optimizer loads what a function of FSDP1's class made of its state."""
    if site.call is None or len(site.call.args) != 1 or site.call.keywords:
        return False
    state, _ = resolved(site.file, site.call.args[0])
    name = site.file.external(state.func) if isinstance(state, ast.Call) else None
    return name is not None and name.startswith(f"{FSDP1}.") and name.rpartition(".")[2] in _SHARD


_SHARD = frozenset({"optim_state_dict_to_load", "scatter_full_optim_state_dict", "shard_full_optim_state_dict",
                    "flatten_sharded_optim_state_dict"})  # fmt: skip
_DISTRIBUTED = {
    "load_optimizer_state": "full state is distributed over the sharded parameters by position",
    "load_model_state": "full state is distributed over the sharded parameters by name",
    "load_state": "full state is distributed if it is for a sharded model or its optimizer",
}

RULE = Rule(
    id="FS403",
    title="load_state_dict()",
    symbols=("torch.nn.Module.load_state_dict",),
    roles=("call", "read"),
    why="A sharded model's load_state_dict refuses full tensors, and an optimizer's keeps them beside sharded parameters.",
    fallback=distributed,
    examples=(
        Example(
            before=(
                "import torch\n"
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
                "\n"
                "\n"
                "def f(net, options, path):\n"
                "    model = FSDP(net, **options)\n"
                "    model.load_state_dict(torch.load(path))\n"
            ),
            after=(
                "import torch\n"
                "\n"
                "from fsdp2_helpers import load_model_state, shard_like_fsdp1\n"
                "\n"
                "\n"
                "def f(net, options, path):\n"
                "    model = shard_like_fsdp1(net, **options)\n"
                "    load_model_state(model, torch.load(path))\n"
            ),
            level=Level.SAFE,
        ),
    ),
    proof=("ddp_prefixed_checkpoint",),
)
