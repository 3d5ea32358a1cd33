"""Work that some ranks do alone."""

import pytest
from two_ranks import names, outcome

FILES = ("checks_each_rank.py", "checks_held_writes.py", "checks_held_by_libraries.py", "checks_copies.py")
CHECKS = [(file, name) for file in FILES for name in names(file)]


@pytest.mark.slow
@pytest.mark.parametrize(("file", "check"), CHECKS)
def test_on_two_ranks(file: str, check: str) -> None:
    assert outcome(file, check) == "passed"
