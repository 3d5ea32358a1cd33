"""Loops with unequal numbers of batches against DDP under Join."""

import pytest
from two_ranks import names, outcome


@pytest.mark.slow
@pytest.mark.parametrize("check", names("checks_join.py"))
def test_on_two_ranks(check: str) -> None:
    assert outcome("checks_join.py", check) == "passed"
