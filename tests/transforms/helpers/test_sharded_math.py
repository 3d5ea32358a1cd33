"""Programs that compute with tensors of several kinds of models, or beside the helpers."""

import pytest
from two_ranks import names, outcome

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.parametrize("check", names("checks_sharded_math.py"))
def test_on_two_ranks(check: str) -> None:
    assert outcome("checks_sharded_math.py", check) == "passed"
