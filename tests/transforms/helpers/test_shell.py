"""Base classes in the place of DDP and FSDP1."""

import pytest
from two_ranks import names, outcome


@pytest.mark.slow
@pytest.mark.parametrize("check", names("checks_shell.py"))
def test_on_two_ranks(check: str) -> None:
    assert outcome("checks_shell.py", check) == "passed"
