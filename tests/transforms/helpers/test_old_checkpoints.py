"""Checkpoints that FSDP1, DDP and sharded models write and read of each other."""

import pytest
from two_ranks import names, outcome


@pytest.mark.slow
@pytest.mark.parametrize("check", names("checks_old_checkpoints.py"))
def test_on_two_ranks(check: str) -> None:
    assert outcome("checks_old_checkpoints.py", check) == "passed"
