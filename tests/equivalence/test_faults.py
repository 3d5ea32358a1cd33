"""Every seeded mistake is found by the right check at the right step, and clean migrations are clean."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults import FAULTS, problems, run_all, table


@pytest.mark.slow
def test_every_fault_is_found_and_nothing_is_found_without_one(tmp_path: Path):
    # One test, because the runs share processes and old sides; the table says what found what.
    outcomes = run_all(tmp_path)
    print(table(outcomes))
    assert len(outcomes) > len(FAULTS)
    assert problems(outcomes) == []
