"""FS503: `apply()` of models in FSDP1."""

from __future__ import annotations

import ast
import re

from ..facts.symbols import FSDP1
from ..findings import Level
from ..flow.values import FunctionValue
from ..migration import Migration
from ..queries.file import File
from ..rewrites.helper_calls import method_as_function
from ..rule import Example, Outcome, Rule
from ..sites import Site

_TOUCHES = re.compile(r"param|weight|bias|init|data|reset|std|mean|uniform|normal")


def on_whole_parameters(site: Site, migration: Migration) -> Outcome | None:
    """What is applied sees whole parameters, and what it writes stays."""
    if site.call is None or site.sharding is None or "fsdp1" not in site.sharding.wrappers or migration.is_before_wrap(site):
        return None
    if site.call.args and not _may_touch_parameters(site.file, site.call.args[0]):
        return Outcome("what is applied looks at modules alone", level=Level.OK)
    change = method_as_function(site.file, site.call, migration.helper(site, "apply_to_full"))
    return Outcome("what is applied sees whole parameters, as in FSDP1, whose apply() gathered them", [change])


def _may_touch_parameters(file: File, function: ast.expr) -> bool:
    """Whether nothing shows what is applied, or it names what parameters are called, or initializers."""
    if isinstance(function, ast.Lambda):
        return _TOUCHES.search(file.text(function)) is not None
    found = [v for v in file.values(function) if isinstance(v, FunctionValue)]
    bodies = (file.program.function_node(value) for value in found)
    return not found or any(_TOUCHES.search(owner.source.segment(node)) for owner, node in bodies)


_BEFORE = (
    "from torch import nn\n"
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
    "def set_up(module):\n"
    "    if isinstance(module, nn.Linear):\n"
    "        nn.init.trunc_normal_(module.weight, std=0.02)\n\n\n"
    "def f(net, options):\n"
    "    model = FSDP(net, **options)\n"
    "    model.apply(set_up)\n"
    "    return model\n"
)

RULE = Rule(
    id="FS503",
    title="apply() of a model in FSDP1",
    symbols=(f"{FSDP1}.apply",),
    roles=("call",),
    why="FSDP1's apply() gathers all parameters first; a sharded model's hands over shards: initializers draw other numbers.",
    fallback=on_whole_parameters,
    examples=(
        Example(
            before=_BEFORE,
            after=_BEFORE.replace(
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n",
                "\nfrom fsdp2_helpers import apply_to_full, shard_like_fsdp1\n",
            )
            .replace("FSDP(net, **options)", "shard_like_fsdp1(net, **options)")
            .replace("model.apply(set_up)", "apply_to_full(model, set_up)"),
            level=Level.REVIEW,
        ),
    ),
)
