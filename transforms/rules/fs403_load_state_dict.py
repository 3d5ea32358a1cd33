"""FS403: `load_state_dict()` of models, optimizers, and what may be either."""

from __future__ import annotations

from ..findings import Level
from ..migration import Migration
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
    name = loader_of_state(site, migration)
    if name is None:
        return Outcome("the sharded model, and its optimizers, take whole tensors", level=Level.OK)
    function = migration.helper(site, name)
    change = method_instead(site.file, site.node, site.call, function, lambda: migration.helper(site, "as_method"))
    return Outcome(_DISTRIBUTED[name], [change]) if change is not None else None


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
