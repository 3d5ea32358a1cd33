"""torch.autograd.grad on sharded models, against the same under DDP."""

import pytest
from two_ranks import names, outcome

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.parametrize("check", names("checks_own_losses.py"))
def test_on_two_ranks(check: str) -> None:
    assert outcome("checks_own_losses.py", check) == "passed"
