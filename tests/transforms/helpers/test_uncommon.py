"""Uncommon meshes, outputs and orders of calls."""

import pytest
from two_ranks import names, outcome


@pytest.mark.slow
@pytest.mark.parametrize("check", names("checks_uncommon.py"))
def test_on_two_ranks(check: str) -> None:
    assert outcome("checks_uncommon.py", check) == "passed"
