"""Forwards without gradients, of which ranks may run different numbers."""

import pytest
from two_ranks import names, outcome

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.parametrize("check", names("checks_evaluation.py"))
def test_on_two_ranks(check: str) -> None:
    assert outcome("checks_evaluation.py", check) == "passed"
