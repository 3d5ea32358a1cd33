"""Predictions that a rank makes or not by a number that it draws, as in self-conditioning."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

DRAWN = (
    HEAD
    + """import random
import torch.distributed as dist


def alone(model, x):
    with torch.no_grad():
        return model(x)


def together(model, x):
    with torch.no_grad():
        out = model(x)
    dist.all_reduce(out)
    return out


def main(kind, batches):
    model = DDP(nn.Linear(4, 4))
    predict = {predict}
    for x in batches:
        hint = torch.zeros(4)
        if random.random() < 0.5:
            hint = predict(model, x)
        (model(x) - hint).square().sum().backward()


main("plain", [torch.ones(2, 4)])
"""
)


@pytest.mark.parametrize(
    ("predict", "is_held"), [("alone", True), ("together", False), ('{"alone": alone, "together": together}[kind]', True)]
)
def test_it_is_gathered_for_unless_all_ranks_surely_make_it(predict: str, is_held: bool) -> None:
    """What ranks agree in takes all of them: under DDP they had waited there, so they draw the same."""
    text = migrated(train=DRAWN.replace("{predict}", predict))["train"]
    assert ("whole_when_asked(model)" in text or "whole_on_each_rank(model)" in text) == is_held
