"""What programs do with the state of sharded models, against what they did with it before."""

import pytest
from two_ranks import names, outcome


@pytest.mark.slow
@pytest.mark.parametrize("check", names("checks_state_uses.py"))
def test_on_two_ranks(check: str) -> None:
    assert outcome("checks_state_uses.py", check) == "passed"
