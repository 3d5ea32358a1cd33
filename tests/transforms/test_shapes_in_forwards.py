"""Shapes and sizes of parameters behind FSDP1: told once a statement, and not inside of forwards."""

from __future__ import annotations

import pytest
from migrated_texts import findings
from to_fsdp2.transforms.findings import Level

PROGRAM = """import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def turned(x):
    return x.flip(0) if x.ndim > 1 else x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))

    def forward(self, x):
        scaled = x * self.weight
        return turned(scaled) if self.weight.numel() > 1 else x


model = FSDP(Net())
model(torch.ones(3, 3))
{asked}
"""
DECAYED = "[p for p in model.parameters() if p.ndim > 1]"
COUNTED = "print(sum(p.numel() for p in model.parameters()), sum(p.numel() for p in model.parameters() if p.requires_grad))"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("", 0),
        (DECAYED, 1),
        (COUNTED, 1),
        (f"{COUNTED}\n{COUNTED}", 2),
        ("turned(model.weight)", 1),
    ],
)
def test_shapes_are_told_where_fsdp1_showed_others(asked: str, told: int) -> None:
    found = [f for f in findings(train=PROGRAM.format(asked=asked)) if f.rule == "FS706" and f.level is Level.REVIEW]
    assert len(found) == told
