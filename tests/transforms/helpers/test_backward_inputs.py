"""Backwards that are told whose gradients they are for, against DDP's."""

import pytest
from two_ranks import names, outcome


@pytest.mark.slow
@pytest.mark.parametrize("check", names("checks_backward_inputs.py"))
def test_on_two_ranks(check: str) -> None:
    assert outcome("checks_backward_inputs.py", check) == "passed"
