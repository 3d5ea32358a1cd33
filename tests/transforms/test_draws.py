"""Predictions that a rank makes or not by a number that it draws, as in self-conditioning."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

DRAWN = (
    HEAD
    + """import random
import torch.distributed as dist


class Plain(nn.Linear):
    def forward(self, x):
        return super().forward(x)


class Agreeing(nn.Linear):
    def forward(self, x):
        dist.all_reduce(x)
        return super().forward(x)


def loss_of(model, x):
    hint = torch.zeros(4)
    if random.random() < 0.5:
        with torch.no_grad():
            hint = model(x)
    return (model(x) - hint).square().sum()


def main(kind, batches):
    model = DDP({kinds}(4, 4))
    for x in batches:
        loss_of(model, x).backward()


main("plain", [torch.ones(2, 4)])
"""
)


@pytest.mark.parametrize(
    ("kinds", "is_held"), [("Plain", True), ("Agreeing", False), ('{"plain": Plain, "agreeing": Agreeing}[kind]', True)]
)
def test_a_draw_in_front_of_a_prediction_is_one_of_each_rank(kinds: str, is_held: bool) -> None:
    """Unless all ranks come to it for sure: what they agree in takes all of them."""
    text = migrated(train=DRAWN.replace("{kinds}", kinds))["train"]
    assert ("with whole_when_asked(model):\n        if random.random() < 0.5:" in text) == is_held
