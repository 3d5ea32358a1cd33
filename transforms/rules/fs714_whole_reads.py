"""FS714: gradients and parameters that code reads, to log their norms or to clip by them."""

from __future__ import annotations

import ast

from ..migration import Migration
from ..queries.reshaped_parameters import is_in_module_or_optimizer
from ..rewrites.helper_calls import around
from ..rule import Example, Outcome, Rule
from ..sites import WHOLE_READ, Site


def gathered(site: Site, migration: Migration) -> Outcome | None:
    """What is read is whole, or the number that a norm of the whole tensor is, as every rank had it under DDP."""
    if not migration.is_gathered_here(site) or _is_working_copy(site, migration):
        return None
    assert isinstance(site.node, ast.expr)
    change = around(site.file, site.node, f"{migration.helper(site, 'whole')}({{it}})")
    if site.node is site.receiver or not isinstance(site.node, ast.Call):
        return Outcome("a sharded tensor is gathered where it is read", [change])
    return Outcome("the norm of a sharded tensor is that of all ranks' parts", [change])


def _is_working_copy(site: Site, migration: Migration) -> bool:
    """Whether an optimizer takes a tensor to compute with, as `p.data.float()`: its steps are on shards, and write to them."""
    if not is_in_module_or_optimizer(site.file, migration.sharding, site.node):
        return False
    statement = site.file.statement(site.node)
    calls = (n.func for n in ast.walk(statement) if isinstance(n, ast.Call))
    return isinstance(statement, ast.Assign) and not any(_name(function) in _NUMBERS for function in calls)


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


_NUMBERS = frozenset({"item", "tolist", "numpy", "norm", "sum", "mean", "max", "min", "any", "all"})
"""What a tensor is read by as a whole: numbers, and what they are computed from."""

RULE = Rule(
    id="FS714",
    title="tensors read whole",
    symbols=(WHOLE_READ,),
    roles=("read",),
    why="A shard's norm, or any number computed from it, is that of one rank's part, and plain tensors do not mix with it.",
    idiom=gathered,
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
                "\n"
                "from fsdp2_helpers import shard_like_ddp, whole\n"
                "\n"
                "\n"
                "def f(net, options, x):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    model(x).sum().backward()\n"
                "    return sum(whole(torch.norm(p.grad)).item() ** 2 for p in model.parameters())\n"
            ),
        ),
    ),
    proof=("norms_and_averages",),
)
