"""Edits of parameters, units and tripwires on plain, DDP, FSDP1 and sharded models."""

import pytest
from two_ranks import names, outcome


@pytest.mark.slow
@pytest.mark.parametrize("check", names("checks_parameters.py"))
def test_on_two_ranks(check: str) -> None:
    assert outcome("checks_parameters.py", check) == "passed"
