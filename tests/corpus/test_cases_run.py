"""Each corpus case trains the same before and after the tool has migrated it, as real torchrun processes on gloo."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from case_runner import check_case
from migrating import analysed, migrate_into
from to_fsdp2.corpus.cases import Case, Run, load_cases

CASES = load_cases()
OPEN: dict[str, str] = {}
"""Runs that the tool does not get right yet, with what is known of them."""
OPEN_BLIND = {"rank0_average-two_ranks": "the guard is a call away from what it hides; what calls reach is not known"}
"""Runs that it does not get right without knowledge of values."""


def _param(case: Case, run: Run, known: dict[str, str] = OPEN) -> object:
    name = f"{case.name}-{run.name}"
    marks = [pytest.mark.xfail(run=False, reason=known[name])] if name in known else []
    return pytest.param(case, run, id=name, marks=marks)


RUNS = [_param(case, run) for case in CASES for run in case.runs]
FIRST_RUNS = [_param(case, case.runs[0]) for case in CASES]
BLIND_RUNS = [_param(case, case.runs[0], OPEN_BLIND) for case in CASES]
STEP = 1 if os.environ.get("TO_FSDP2_ALL_MODES") else 4
"""Of the modes that no user runs, every fourth case; all of them with TO_FSDP2_ALL_MODES=1."""


def check_migrated(case: Case, run: Run, folder: Path, **changes: object) -> None:
    """Migrates a case, and compares a run of the result with the same run of the program as it was."""
    migrate_into(folder / "migrated" / "after", case, **changes)
    (folder / "migrated" / "before").symlink_to(case.before)
    losses, parameters = check_case(replace(case, folder=folder / "migrated"), run, folder)
    print(f"{case.name} {run.name}: losses {losses:.1e}, parameters {parameters:.1e}")


@pytest.mark.slow
@pytest.mark.parametrize(("case", "run"), RUNS)
def test_migrated_cases_train_the_same(case: Case, run: Run, tmp_path: Path) -> None:
    check_migrated(case, run, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "run"), FIRST_RUNS[::STEP])
def test_general_forms_alone_train_the_same(case: Case, run: Run, tmp_path: Path) -> None:
    check_migrated(case, run, tmp_path, idioms=False)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "run"), BLIND_RUNS[1 % STEP :: STEP])
def test_migration_without_knowledge_of_values_trains_the_same(case: Case, run: Run, tmp_path: Path) -> None:
    check_migrated(case, run, tmp_path, blind=True)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "run"), FIRST_RUNS[2 % STEP :: STEP])
def test_everything_but_the_wraps_changes_nothing(case: Case, run: Run, tmp_path: Path) -> None:
    check_migrated(case, run, tmp_path, wraps=False, idioms=False)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_second_run_finds_nothing_to_do(case: Case, tmp_path: Path) -> None:
    migrate_into(tmp_path / "migrated", case)
    analysis, sources = analysed(tmp_path / "migrated", case)
    changed = {path: text for path, text in analysis.texts.items() if text != sources[path].text}
    assert not changed
    assert not analysis.errors
