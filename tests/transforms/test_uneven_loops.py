"""Evaluations over what is a rank's own part of a list: some ranks may have none."""

from __future__ import annotations

import pytest
from migrated_texts import migrated

PROGRAM = """import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


{decorator}
def evaluate(model, data):
    rank, world = dist.get_rank(), dist.get_world_size()
    return [model(x) for x in {over}]


def main(data):
    net = nn.Linear(4, 4)
    model = DDP(net, static_graph=data[0])
    model(torch.ones(2, 4)).sum().backward()
    evaluate(model.module, data)


main([])
"""


@pytest.mark.parametrize(("over", "is_held"), [
    ("data[rank::world]", True), ("range(rank, len(data), world)", True), ("data", False), ("data[:3]", False),
])  # fmt: skip
def test_a_rank_s_own_part_may_be_empty(over: str, is_held: bool) -> None:
    text = migrated(train=PROGRAM.format(over=over, decorator="@torch.no_grad()"))["train"]
    assert ("with whole_on_each_rank(model):" in text) == is_held


def test_forwards_without_gradients_go_on_with_what_is_gathered() -> None:
    assert "gather_once_in_evaluation(net)" in migrated(train=PROGRAM.format(over="data", decorator="@torch.no_grad()"))["train"]
    assert "gather_once_in_evaluation" not in migrated(train=PROGRAM.format(over="data", decorator=""))["train"]
