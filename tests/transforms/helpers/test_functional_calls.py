"""`functional_call` on sharded models, against itself on plain ones."""

import pytest
from two_ranks import names, outcome

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.parametrize("check", names("checks_functional_calls.py"))
def test_on_two_ranks(check: str) -> None:
    assert outcome("checks_functional_calls.py", check) == "passed"
