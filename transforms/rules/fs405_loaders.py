"""FS405: functions of libraries that load a file into a model."""

from __future__ import annotations

from ..findings import Level
from ..migration import Migration
from ..queries.answers import Answer
from ..rewrites.helper_calls import around
from ..rule import Example, Outcome, Rule
from ..sites import Site


def with_whole_parameters(site: Site, migration: Migration) -> Outcome | None:
    """The function gets the model with whole parameters; what it writes is kept in the shards."""
    call = site.call
    if call is None or not call.args or migration.runs_before_wraps(site.file, call):
        return None
    model = call.args[0]
    found = migration.sharding.of(site.file, model)
    if found.answer is Answer.NO or not found.wrappers or migration.is_fresh(site.file, call, model):
        return None
    name = migration.helper(site, "on_full_model")
    return Outcome("the library loads into whole parameters, and every rank keeps its part of them",
                   [around(site.file, call.func, f"{name}({{it}})")])  # fmt: skip


RULE = Rule(
    id="FS405",
    title="loaders of libraries",
    symbols=("safetensors.torch.load_model", "*.load_checkpoint", "*.load_checkpoint_in_model", "*.load_pretrained_weights"),
    roles=("call",),
    why="A library copies whole tensors into the parameters that it finds, which are shards after the wrap.",
    fallback=with_whole_parameters,
    examples=(
        Example(
            before=(
                "import safetensors.torch\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "class Trainer:\n"
                "    def __init__(self, net, options, path):\n"
                "        self.model = DDP(net, **options)\n"
                "        safetensors.torch.load_model(self.model, path)\n"
            ),
            after=(
                "import safetensors.torch\n"
                "from fsdp2_helpers import on_full_model, shard_like_ddp\n"
                "\n"
                "\n"
                "class Trainer:\n"
                "    def __init__(self, net, options, path):\n"
                "        self.model = shard_like_ddp(net, **options)\n"
                "        on_full_model(safetensors.torch.load_model)(self.model, path)\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
