"""FS100: imports of old symbols."""

from __future__ import annotations

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site


def stays(site: Site, migration: Migration) -> Outcome:
    """An import is never rewritten for itself: it goes when nothing uses its name any more."""
    return Outcome("the import stays: what uses it is right as it is", level=Level.OK)


RULE = Rule(
    id="FS100",
    title="imports of old symbols",
    symbols=("*",),
    roles=("import",),
    why="An import goes with the last use of its name, and only then; what generated code needs is imported in its place.",
    fallback=stays,
    examples=(
        Example(
            before=(
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
                "\n"
                "\n"
                "def f(m):\n"
                "    return isinstance(m, FSDP)\n"
            ),
            after=(
                "from torch.distributed.fsdp import FSDPModule\n"
                "\n"
                "\n"
                "def f(m):\n"
                "    return isinstance(m, FSDPModule)\n"
            ),
            level=Level.OK,
        ),
    ),
    proof=("two_towers",),
)
