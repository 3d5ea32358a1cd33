"""Members of the old wrappers that are called by a name in quotes, and that nothing takes the place of."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings

PROGRAM = (
    HEAD
    + """def joined(model):
    {read}


def main(net):
    return joined(DDP(net))
"""
)


@pytest.mark.parametrize(
    ("read", "level"),
    [
        ('return getattr(model, "join")()', "manual"),
        ('return getattr(model, "join")() if hasattr(model, "join") else None', "review"),
        ('return getattr(model, "join", None)', "ok"),
    ],
)
def test_calls_that_raise_are_stops(read: str, level: str) -> None:
    found = [finding for finding in findings(train=PROGRAM.format(read=read)) if finding.rule == "FS604"]
    assert {finding.level for finding in found if "sharded models have no" in finding.message} == {level}
