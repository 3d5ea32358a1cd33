"""Gradients reset by what is called an optimizer, of which nothing else is known: its own method resets those of shards."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated


@pytest.mark.parametrize(
    ("thing", "stays"), [("self.parts['optimizer']['module']", True), ("self.optimizer", True), ("self.parts['net']", False)]
)
def test_what_is_called_an_optimizer(thing: str, stays: bool) -> None:
    code = "class Solver:\n    def __init__(self, net, parts, optimizer=None):\n        self.net = DDP(net)\n        self.parts = parts\n"
    code += f"        self.optimizer = optimizer\n\n    def step(self, x):\n        {thing}.zero_grad()\n        self.net(x).sum().backward()\n"
    assert ("zero_gradients(" not in migrated(train=HEAD + code)["train"]) == stays
