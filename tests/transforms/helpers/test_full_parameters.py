"""summon_full_params and apply against FSDP1, and what is done inside against DDP."""

import pytest
from two_ranks import names, outcome


@pytest.mark.slow
@pytest.mark.parametrize("check", names("checks_full_parameters.py"))
def test_on_two_ranks(check: str) -> None:
    assert outcome("checks_full_parameters.py", check) == "passed"
