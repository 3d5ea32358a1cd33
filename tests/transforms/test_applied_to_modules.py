"""Functions that `apply` hands each part of a model: what they write to its parameters is written to their shards."""

from __future__ import annotations

import pytest
from migrated_texts import migrated

PROGRAM = """import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def clip(m):
    if isinstance(m, nn.Linear):
        m.weight.data = m.weight.data.clamp(-1, 1)


class Clip:
    def __call__(self, m):
        m.weight.data = m.weight.data.clamp(-1, 1)


def train(net, loader, optimizer):
    model = FSDP(net, use_orig_params=True)
    for x in loader:
        model(x).sum().backward()
        optimizer.step()
        model.apply({function})
"""


@pytest.mark.parametrize("function", ["clip", "Clip()", "lambda m: clip(m)"])
def test_parameters_of_parts_are_written(function: str) -> None:
    text = migrated(train=PROGRAM.replace("{function}", function))["train"]
    assert "assign_data(m.weight, m.weight.data.clamp(-1, 1))" in text
