"""Ranks that come to different calls."""

import pytest
from two_ranks import names, outcome


@pytest.mark.slow
@pytest.mark.parametrize("check", names("checks_ranks.py"))
def test_on_two_ranks(check: str) -> None:
    assert outcome("checks_ranks.py", check) == "passed"
