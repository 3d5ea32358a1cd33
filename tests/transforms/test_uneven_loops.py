"""Evaluations over what is a rank's own part: ranks may have different numbers of batches."""

from __future__ import annotations

import pytest
from migrated_texts import migrated

PROGRAM = """import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Sampler


class Part(Sampler):
    def __init__(self, data, rank, world):
        {made}

    def __iter__(self):
        return iter(self.indices)


@torch.no_grad()
def evaluate(model, loader):
    return [model(x) for x in loader], sum(model(x).sum() for x in loader)


def main(data):
    net = nn.Linear(4, 4)
    model = DDP(net)
    loader = DataLoader(data, sampler=Part(data, dist.get_rank(), dist.get_world_size()))
    model(torch.ones(2, 4)).sum().backward()
    evaluate(model.module, loader)


main([])
"""


@pytest.mark.parametrize(("made", "is_held"), [
    ("self.indices = range(rank, len(data), world)", True),
    ("share = math.ceil(len(data) / world)\n        self.indices = range(rank * share, rank * share + share)", False),
    ("self.indices = range(len(data))", False),
])  # fmt: skip
def test_a_sampler_of_the_program_s_own_may_be_uneven(made: str, is_held: bool) -> None:
    assert ("with whole_on_each_rank(model):" in migrated(train=PROGRAM.format(made=made))["train"]) == is_held
