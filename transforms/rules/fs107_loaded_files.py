"""FS107: files that torch.load has read whole until torch 2.5."""

from __future__ import annotations

import ast

from ..findings import Form, Level
from ..migration import Migration
from ..queries.program import Program
from ..rule import Example, Outcome, Rule
from ..sites import Site


def told(site: Site, migration: Migration) -> Outcome | None:
    """Said once: who runs a torch that has fully_shard already has met it, or says what may be read."""
    if not migration.options.wraps or migration.program.mentions(r"\bweights_only\b|\badd_safe_globals\b"):
        return None
    if site.node is not migration.program.once(_First).of(migration, site.symbol):
        return Outcome("told at the first file that is loaded", level=Level.OK)
    return Outcome(_TOLD, level=Level.REVIEW, form=Form.NOTE, advice=_ADVICE)


class _First:
    """The first place of a repository, looked for once."""

    def __init__(self, _: Program) -> None:
        self._node: ast.AST | None = None

    def of(self, migration: Migration, symbol: str) -> ast.AST | None:
        if self._node is None:
            every = (one.node for path in sorted(migration.sites) for one in migration.sites[path] if one.symbol == symbol)
            self._node = next(every, None)
        return self._node


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
