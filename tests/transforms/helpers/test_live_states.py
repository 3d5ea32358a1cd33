"""State dicts that follow the weights, against DDP's."""

import pytest
from two_ranks import names, outcome


@pytest.mark.slow
@pytest.mark.parametrize("check", names("checks_live_states.py"))
def test_on_two_ranks(check: str) -> None:
    assert outcome("checks_live_states.py", check) == "passed"
