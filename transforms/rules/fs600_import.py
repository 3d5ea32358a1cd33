"""Imports of FSDP1, DDP and old checkpoint symbols."""

from __future__ import annotations

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site


def check(site: Site, migration: Migration) -> Outcome:
    if site.symbol.endswith(".*"):
        return Outcome(
            Level.MANUAL,
            f"a star import of {site.symbol.removesuffix('.*')} stays",
            "Import the names that the file uses one by one; then the tool sees which of them are needed.",
        )
    return Outcome(Level.SAFE, f"the import of {site.member} goes with its last use")


RULE = Rule(
    id="FS600",
    title="Imports follow the names in use",
    why=(
        "An import of an old symbol goes once nothing in the file uses it and no other file imports it from there; "
        "one that is still used stays, and the finding names the line. Lines of other imports are not touched."
    ),
    symbols=("*",),
    roles=("import",),
    check=check,
    examples=(
        Example(
            before="from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n",
            after="from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n",
            level=Level.OK,
            note="nothing uses it, before or after: not this tool's business",
        ),
    ),
    proof=("nanogpt_ddp", "finetuning_package"),
)
