"""What the tool leaves to a person, and the advice that comes with it: followed by hand, the program trains the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_runner import check_case
from to_fsdp2.corpus.cases import Case, Run, load_cases
from to_fsdp2.transforms.engine import Analysis, Options, analyse, extract
from to_fsdp2.transforms.findings import Level
from to_fsdp2.transforms.text.source import Source

CASES = load_cases(Path(__file__).parent / "by_hand")
RUNS = [pytest.param(case, run, id=f"{case.name}-{run.name}") for case in CASES for run in case.runs]


def analysed(folder: Path) -> Analysis:
    """What the tool says of a folder."""
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.py"))}
    sources = {label: Source.read(label, path.read_bytes()) for label, path in paths.items()}
    return analyse([extract(source) for source in sources.values()], sources.__getitem__, Options())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_tool_leaves_it_alone_and_has_nothing_to_say_of_the_other_side(case: Case) -> None:
    before = analysed(case.before)
    assert not before.edits
    assert any(finding.level is Level.MANUAL and finding.advice for finding in before.findings)
    assert not analysed(case.after).findings


@pytest.mark.slow
@pytest.mark.parametrize(("case", "run"), RUNS)
def test_by_hand_it_trains_the_same(case: Case, run: Run, tmp_path: Path) -> None:
    check_case(case, run, tmp_path)
