"""Both sides of every corpus case, through the recorder and the checks of `verify`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from faults import outcome_of, run_jobs
from to_fsdp2.corpus.cases import Run, load_cases

CASES = [(case, run) for case in load_cases() for run in case.runs if run.launcher == "torchrun"]


def job(source: Path, folder: Path, run: Run) -> dict:
    """The first invocation of a run of one side, in a copy of it."""
    shutil.copytree(source, folder / "source")
    return {
        "name": str(folder),
        "record": str(folder / "record"),
        "folder": str(folder / "source"),
        "script": str(folder / "source" / run.script),
        "world": run.nproc,
        "arguments": list(run.args[0]) if run.args else [],
    }


@pytest.mark.slow
def test_every_case_trains_the_same_after_its_migration(tmp_path: Path):
    # One test, because the runs share a process that has imported torch.
    places = [(tmp_path / f"{case.name}-{run.name}", case, run) for case, run in CASES]
    jobs = [job(getattr(case, s), place / s, run) for place, case, run in places for s in ("before", "after")]
    run_jobs(jobs, tmp_path)
    problems: list[str] = []
    for place, _, _ in places:
        outcome = outcome_of((place / "before" / "record", place / "after" / "record"))
        if outcome.error:
            problems.append(f"{place.name}: {outcome.error.splitlines()[-1:]}")
        problems += [f"{place.name}: {name} differs at step {step}" for name, step in outcome.failing.items()]
    assert places
    assert problems == []
