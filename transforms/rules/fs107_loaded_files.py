"""FS107: files that torch.load has read whole until torch 2.5."""

from __future__ import annotations

from ..findings import Form, Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site


def told(site: Site, migration: Migration) -> Outcome | None:
    """Said once: who runs a torch that has fully_shard already has met it, or says what may be read."""
    if not migration.options.wraps or migration.program.mentions(r"\bweights_only\b|\badd_safe_globals\b"):
        return None
    first = min((path, min(s.node.lineno for s in sites if s.symbol == site.symbol))  # type: ignore[attr-defined]
                for path, sites in migration.sites.items() if any(s.symbol == site.symbol for s in sites))  # fmt: skip
    if (site.file.path, site.node.lineno) != first:  # type: ignore[attr-defined]
        return Outcome("told at the first file that is loaded", level=Level.OK)
    return Outcome(_TOLD, level=Level.REVIEW, form=Form.NOTE, advice=_ADVICE)


_TOLD = "since torch 2.6, which has fully_shard, torch.load reads tensors and plain data alone, and raises for other objects"
_ADVICE = "weights_only=False, for files of your own that hold others, such as args or numpy's numbers."

RULE = Rule(
    id="FS107",
    title="files with other objects than tensors",
    symbols=("torch.load",),
    roles=("call",),
    why="Checkpoints often keep the arguments of the run: a program that resumed from them ends there with an UnpicklingError.",
    fallback=told,
    examples=(
        Example(
            before=(
                "import torch\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
                "def f(net, options, path):\n"
                '    options["args"] = torch.load(path)["args"]\n'
                "    return DDP(net, **options)\n"
            ),
            after=(
                "import torch\n\n"
                "from fsdp2_helpers import shard_like_ddp\n\n\n"
                "def f(net, options, path):\n"
                '    options["args"] = torch.load(path)["args"]\n'
                "    return shard_like_ddp(net, **options)\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
