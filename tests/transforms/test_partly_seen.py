"""What a call gives that leads nowhere may be a model, though all else that comes to a name is a literal."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = (
    HEAD
    + """import torch.distributed as dist

from elsewhere import plugins


def save(model, optimizers, path):
    torch.save({{"model": model.state_dict(), "one": optimizers["one"].state_dict()}}, path)


def wrap(net):
    return DDP(net)


def main(name, path, is_empty):
    model, optimizers = plugins[name].make(wrap)
    if is_empty:
        model, optimizers = {other}
    if dist.get_rank() == 0:
        save(model, optimizers, path)
"""
)


@pytest.mark.parametrize("other", ["{}, {}", "None, {'one': None}"])
def test_a_dictionary_elsewhere_is_not_all_that_there_is(other: str) -> None:
    text = migrated(train=PROGRAM.format(other=other))["train"]
    assert "whole_on_each_rank(model, optimizers" in text or "everything_whole_on_each_rank(" in text
