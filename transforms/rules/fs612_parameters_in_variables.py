"""FS612: parameters that a variable holds while their model is wrapped."""

from __future__ import annotations

import ast

from ..findings import Form, Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import LOCAL_PARAMETER, Site


def told(site: Site, migration: Migration) -> Outcome | None:
    """Where it is read again is for a person to say: the variable may be meant to keep what was there before."""
    if not migration.options.wraps:
        return None
    target = ast.unparse(site.file.statement(site.node).targets[0])  # type: ignore[attr-defined]
    message = f"{target} goes on with the parameter from before sharding, which the model has no more: it would not be trained"
    again = f"{target} = {site.file.text(site.node)}"
    return Outcome(message, level=Level.MANUAL, form=Form.NOTE, advice=f"Behind the wrap, say once more: {again}")


RULE = Rule(
    id="FS612",
    title="parameters in variables",
    symbols=(LOCAL_PARAMETER,),
    roles=("read",),
    why="Sharding puts other parameters in the model: what objects hold is exchanged, but no name of a running function is.",
    fallback=told,
    examples=(
        Example(
            before=(
                "import torch\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(options, x):\n"
                "    net = torch.nn.Linear(4, 4)\n"
                "    weight = net.weight\n"
                "    model = DDP(net, **options)\n"
                "    return model(x).sum() + weight.norm()\n"
            ),
            after=(
                "import torch\n"
                "\n"
                "from fsdp2_helpers import shard_like_ddp\n"
                "\n"
                "\n"
                "def f(options, x):\n"
                "    net = torch.nn.Linear(4, 4)\n"
                "    weight = net.weight\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    return model(x).sum() + weight.norm()\n"
            ),
            level=Level.MANUAL,
        ),
    ),
)
