"""FS107: files that torch.load has read whole until torch 2.5."""

from __future__ import annotations

import ast
import re

from ..facts.symbols import DDP, FSDP1
from ..findings import Form, Level
from ..migration import Migration
from ..queries.program import Program
from ..rule import Example, Outcome, Rule
from ..sites import Site


def told(site: Site, migration: Migration) -> Outcome | None:
    """Said once a program: who runs a torch that has fully_shard already has met it, or says what may be read."""
    if not migration.options.wraps or migration.program.mentions(r"\bweights_only\b|\badd_safe_globals\b"):
        return None
    if site.node not in migration.program.once(_Told).places(migration, site.symbol):
        return Outcome("told where a program that wraps models loads what it has saved", level=Level.OK)
    return Outcome(_TOLD, level=Level.REVIEW, form=Form.NOTE, advice=_ADVICE)


class _Told:
    """The places of a repository that are told, looked for once: in each program with a wrap one that is most like a resume."""

    def __init__(self, _: Program) -> None:
        self._places: frozenset[ast.AST] | None = None

    def places(self, migration: Migration, symbol: str) -> frozenset[ast.AST]:
        """The calls that are told, of all to a function."""
        if self._places is None:
            wrapping = {program for path, sites in migration.sites.items() if any(map(_wraps, sites))
                        for program in migration.programs.of(path)}  # fmt: skip
            found: dict[str, list[Site]] = {program: [] for program in wrapping}
            for path in sorted(migration.sites):
                loads = [site for site in migration.sites[path] if site.symbol == symbol]
                for program in migration.programs.of(path) if loads else ():
                    found.get(program, []).extend(loads)
            self._places = frozenset(min(loads, key=_is_unlike_a_resume).node for loads in found.values() if loads)
        return self._places


def _wraps(site: Site) -> bool:
    return site.symbol in (DDP, FSDP1) and site.role == "call"


def _is_unlike_a_resume(site: Site) -> bool:
    return not _RESUMES.search(ast.unparse(site.file.function(site.node) or site.file.statement(site.node)))


_RESUMES = re.compile(r"(?i)optim|resume|epoch")
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
