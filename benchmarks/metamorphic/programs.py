"""The programs that are refactored: what each run starts, and how two outcomes are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from to_fsdp2.corpus.cases import Case, load_cases

from . import comparison

if TYPE_CHECKING:
    from .launch import Outcome


@dataclass(frozen=True)
class Run:
    """One way to run a program: its stages one after the other, which share a folder and `OUT`."""

    name: str
    launcher: Literal["torchrun", "python"]
    nproc: int
    script: str
    stages: tuple[tuple[str, ...], ...]
    environment: tuple[tuple[str, str], ...] = ()


# (run, outcome of the old program, outcome of the new one, whether they have to be bitwise equal) -> the first difference
Compare = Callable[[Run, "Outcome", "Outcome", bool], str]


@dataclass(frozen=True)
class Program:
    """A program before its migration, the same migrated by hand, and the options of the tool that it asks for."""

    name: str
    old: Path
    by_hand: Path
    runs: tuple[Run, ...]
    options: tuple[str, ...]
    compare: Compare = field(compare=False)


def corpus() -> list[Program]:
    """The programs of the corpus."""
    return [_of_corpus(case) for case in load_cases()]


def _of_corpus(case: Case) -> Program:
    runs: dict[str, Any] = {run.name: run for run in case.runs}

    def compare(run: Run, old: Outcome, new: Outcome, exact: bool) -> str:
        tolerance = (0.0, 0.0) if exact else (case.compare.losses, case.compare.parameters)
        return comparison.corpus(runs[run.name].parameters, old, new, *tolerance)

    return Program(
        name=case.name,
        old=case.before,
        by_hand=case.after,
        runs=tuple(Run(run.name, run.launcher, run.nproc, run.script, run.args) for run in case.runs),
        options=tuple(part for name, value in case.options.items() for part in (f"--{name}", value)),
        compare=compare,
    )
