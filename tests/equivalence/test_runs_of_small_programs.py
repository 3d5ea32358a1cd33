"""Pairs of real runs whose comparison takes more than the numbers of each step."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults import Outcome, outcome_of, run_jobs

pytestmark = pytest.mark.slow
SCRIPTS = Path(__file__).parent / "scripts"


def outcomes(tmp_path: Path, script: str, *arguments: str) -> list[Outcome]:
    """Runs the script with each of the arguments, and compares all others with the first."""
    jobs = []
    for argument in arguments:
        place = str(tmp_path / argument)
        fields = {"name": place, "record": place, "folder": place, "script": str(SCRIPTS / script)}
        jobs.append({**fields, "world": 2, "arguments": [argument]})
    run_jobs(jobs, tmp_path)
    return [outcome_of((tmp_path / arguments[0], tmp_path / argument)) for argument in arguments[1:]]


def test_steps_of_ranks_with_fewer_batches_are_aligned(tmp_path: Path):
    (result,) = outcomes(tmp_path, "uneven.py", "join", "empty")
    assert result.error == ""
    assert result.failing == {}
    assert result.comparison is not None
    assert "12 losses" in result.comparison.results["loss"].reason
    assert result.comparison.old.step_count == result.comparison.new.step_count == 8


def test_evaluation_with_statistics_of_its_own_on_each_rank_is_a_difference(tmp_path: Path):
    broadcast, own = outcomes(tmp_path, "evaluating.py", "ddp", "broadcast", "own")
    assert broadcast.failing == {}
    assert broadcast.comparison is not None and own.comparison is not None
    assert "6 calls in eval mode are equal" in broadcast.comparison.results["evaluation"].reason
    assert own.failing == {"evaluation": 1}
    result = own.comparison.results["evaluation"]
    assert "rank 1" in result.reason
    assert "broadcast them before evaluating" in result.causes[0]
