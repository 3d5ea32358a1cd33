"""Tied parameters that a forward writes, against DDP."""

import pytest
from two_ranks import names, outcome

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.parametrize("check", names("checks_tied_writes.py"))
def test_on_two_ranks(check: str) -> None:
    assert outcome("checks_tied_writes.py", check) == "passed"
