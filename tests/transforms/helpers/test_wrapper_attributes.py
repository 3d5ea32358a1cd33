"""Attributes that a wrapper kept to itself, against DDP's."""

import pytest
from two_ranks import names, outcome


@pytest.mark.slow
@pytest.mark.parametrize("check", names("checks_wrapper_attributes.py"))
def test_on_two_ranks(check: str) -> None:
    assert outcome("checks_wrapper_attributes.py", check) == "passed"
