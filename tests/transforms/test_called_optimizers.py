"""Gradients reset by what is called an optimizer, of which nothing else is known: its own method resets those of shards."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, helpers, migrated

PROGRAM = (
    HEAD
    + """class Solver:
    def __init__(self, net, parts, optimizer=None):
        self.net = DDP(net)
        self.parts = parts
        self.optimizer = optimizer

    def step(self, x):
        {thing}.zero_grad()
        self.net(x).sum().backward()
"""
)
THINGS = [("self.parts['optimizer']['module']", True), ("self.optimizer", True), ("self.parts['net']", False)]


@pytest.mark.parametrize(("thing", "stays"), THINGS)
def test_what_is_called_an_optimizer(thing: str, stays: bool) -> None:
    text = migrated(train=PROGRAM.format(thing=thing))["train"]
    assert f"{thing}.zero_grad()" in text
    assert ("reset_shards_in_zero_grad()" not in text + helpers(train=PROGRAM.format(thing=thing))) == stays
