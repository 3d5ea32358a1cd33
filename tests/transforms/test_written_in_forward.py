"""Writes into parameters while forward runs hold the model back; those between the steps do not."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

_TEXT = """\
import torch
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("count", torch.zeros(1), persistent=False)
        self.scale.data.fill_(2.0)

    def forward(self, x):
        {line}
        return self.layer(x) * self.scale

    def bound(self):
        self.scale.data.clamp_(0, 5)


torch.cuda.set_device(0)
model = DDP(Net(), device_ids=[0], broadcast_buffers=False)
"""


def _found(line: str) -> tuple[bool, bool]:
    """(whether FS706 speaks up, whether the model is sharded)"""
    analysis, results = analyse_texts({"train.py": _TEXT.format(line=line)})
    return any(f.rule == "FS706" for f in analysis.findings), "fully_shard(model)" in results["train.py"]


@pytest.mark.parametrize(
    "line",
    [
        "self.scale.data.clamp_(0, 5)",
        "self.scale.data = self.scale.data.clamp(0, 5)",
        "self.scale.data[0] = 1.0",
        "self.layer.weight.data.copy_(normalized(self.layer.weight))",
        "self.bound()",
    ],
)
def test_a_write_in_forward_holds_the_model(line: str) -> None:
    assert _found(line) == (True, False)


@pytest.mark.parametrize("line", ["pass", "self.count.add_(1)", "x.clamp_(0, 5)", "self.scale.requires_grad_(False)"])
def test_other_lines_do_not(line: str) -> None:
    assert _found(line) == (False, True)
