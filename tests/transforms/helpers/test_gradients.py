"""Synchronization, clipping and scaling of gradients against DDP and FSDP1."""

import pytest
from two_ranks import names, outcome


@pytest.mark.slow
@pytest.mark.parametrize("check", names("checks_gradients.py"))
def test_on_two_ranks(check: str) -> None:
    assert outcome("checks_gradients.py", check) == "passed"
