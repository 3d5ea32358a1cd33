"""Averages of models that libraries keep, against themselves under DDP."""

import pytest
from two_ranks import names, outcome

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.parametrize("check", names("checks_whole_copies.py"))
def test_on_two_ranks(check: str) -> None:
    assert outcome("checks_whole_copies.py", check) == "passed"
