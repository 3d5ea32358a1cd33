"""Each corpus case trains the same before and after its migration, as real torchrun processes on gloo."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_runner import check_case
from to_fsdp2.corpus.cases import Case, Run, load_cases

RUNS = [pytest.param(case, run, id=f"{case.name}-{run.name}") for case in load_cases() for run in case.runs]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "run"), RUNS)
def test_before_and_after_train_the_same(case: Case, run: Run, tmp_path: Path) -> None:
    losses, parameters = check_case(case, run, tmp_path)
    print(f"{case.name} {run.name}: losses {losses:.1e}, parameters {parameters:.1e}")
