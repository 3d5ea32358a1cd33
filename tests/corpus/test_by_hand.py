"""The advice that comes with what the tool leaves to a person: followed by hand, the program trains the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_runner import check_case
from to_fsdp2.corpus.cases import Case, Run, load_cases

CASES = load_cases(Path(__file__).parent / "by_hand")
RUNS = [pytest.param(case, run, id=f"{case.name}-{run.name}") for case in CASES for run in case.runs]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "run"), RUNS)
def test_by_hand_it_trains_the_same(case: Case, run: Run, tmp_path: Path) -> None:
    check_case(case, run, tmp_path)
