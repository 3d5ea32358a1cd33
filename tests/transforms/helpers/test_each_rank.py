"""Work that some ranks do alone."""

import pytest
from two_ranks import names, outcome


@pytest.mark.slow
@pytest.mark.parametrize("check", names("checks_each_rank.py"))
def test_on_two_ranks(check: str) -> None:
    assert outcome("checks_each_rank.py", check) == "passed"
