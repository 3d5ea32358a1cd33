"""Code that computes with each rank's own part of parameters, against the same under FSDP1."""

import pytest
from two_ranks import names, outcome

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.parametrize("check", names("checks_parts.py"))
def test_on_two_ranks(check: str) -> None:
    assert outcome("checks_parts.py", check) == "passed"
