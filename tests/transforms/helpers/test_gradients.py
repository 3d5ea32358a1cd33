"""Synchronization, clipping and scaling of gradients against DDP and FSDP1."""

import pytest
from two_ranks import names, outcome

FILES = ("checks_gradients.py", "checks_clipping.py", "checks_unsynced_steps.py")
CHECKS = [(file, name) for file in FILES for name in names(file)]


@pytest.mark.slow
@pytest.mark.parametrize(("file", "check"), CHECKS)
def test_on_two_ranks(file: str, check: str) -> None:
    assert outcome(file, check) == "passed"
