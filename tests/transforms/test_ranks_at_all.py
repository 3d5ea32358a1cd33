"""Tests whether there are ranks at all: all ranks answer them alike, also where the number for none has a name."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = (
    HEAD
    + """NONE = {none}


def show(net, local_rank):
    model = DDP(net)
    if local_rank {test} NONE:
        print(model(torch.ones(2)))
"""
)


@pytest.mark.parametrize("test", ["==", "!="])
@pytest.mark.parametrize(("none", "is_guard"), [("-1", False), ("None", False), ("1", True)])
def test_the_number_for_none_by_its_name(none: str, test: str, is_guard: bool) -> None:
    text = migrated(train=PROGRAM.format(none=none, test=test))["train"]
    assert ("whole_on_each_rank" in text) == is_guard
