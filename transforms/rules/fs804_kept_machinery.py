"""FS804: what the old wrappers brought along: hooks, model averaging, composable forms."""

from __future__ import annotations

from ..facts.symbols import is_old
from ..findings import Form, Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site

_ALGORITHMS = "torch.distributed.algorithms"
_HOOKS = (f"{_ALGORITHMS}.ddp_comm_hooks", f"{_ALGORITHMS}._comm_hooks")
_AVERAGING = (f"{_ALGORITHMS}.model_averaging", "torch.distributed.optim.PostLocalSGDOptimizer")


def told(site: Site, migration: Migration) -> Outcome | None:
    """Hooks are read where they are registered; local SGD has no counterpart; the rest stands by itself."""
    if not is_old(site.symbol) or site.receiver is not None:
        return None
    if site.symbol.startswith(_HOOKS):
        return Outcome("read where it is registered: a hook without counterpart raises there", level=Level.OK)
    if site.symbol.startswith(_AVERAGING) and migration.options.ddp != "keep":
        return Outcome(
            "ranks with weights of their own between averages are not possible with sharded weights", level=Level.MANUAL,
            form=Form.NOTE, advice="Keep DDP for this program (--ddp keep), or average gradients at every step.",
        )  # fmt: skip
    return Outcome("it stands by itself, beside FSDP2 as before", level=Level.OK)


RULE = Rule(
    id="FS804",
    title="machinery of DDP",
    symbols=(f"{_ALGORITHMS}.*", "torch.distributed.optim.*", "torch.distributed._composable.*", "torch.nn.parallel.*"),
    roles=("call", "value", "test", "annotation", "base"),
    why="Model averaging lets replicas drift apart between averages: sharded models have only one copy of each weight.",
    fallback=told,
    examples=(
        Example(
            before=(
                "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook\n"
                "\n"
                "\n"
                "def f():\n"
                "    return fp16_compress_hook\n"
            ),
            after=(
                "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook\n"
                "\n"
                "\n"
                "def f():\n"
                "    return fp16_compress_hook\n"
            ),
            level=Level.OK,
        ),
    ),
)
