"""Optimizer state of sharded models against DDP's and FSDP1's."""

import pytest
from two_ranks import names, outcome


@pytest.mark.slow
@pytest.mark.parametrize("check", names("checks_optimizer_state.py"))
def test_on_two_ranks(check: str) -> None:
    assert outcome("checks_optimizer_state.py", check) == "passed"
