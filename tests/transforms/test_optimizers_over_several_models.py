"""Optimizers that have parameters of several models: no helper takes their state."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

_PROGRAM = """\
import torch
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        return self.head(self.body(x))


def build(model):
    return torch.optim.AdamW(model.parameters())


net, criterion = Net(), Net()
model = DDP(net)
loss = DDP(criterion)
optimizer = {optimizer}
{use}
"""
_SEVERAL = {
    "groups": 'torch.optim.Adam([{"params": model.parameters()}, {"params": loss.parameters(), "lr": 0.1}])',
    "lists": "torch.optim.Adam(list(model.parameters()) + list(loss.parameters()))",
    "plain": "torch.optim.Adam([*model.parameters(), *criterion.parameters()])",
}
_ONE = {
    "one": "torch.optim.Adam(model.parameters())",
    "parts": 'torch.optim.Adam([{"params": model.module.body.parameters()}, {"params": net.head.parameters(), "lr": 0.1}])',
    "each by a function": "build(model)\nother = build(loss)",
}


@pytest.mark.parametrize("use", ["torch.save(optimizer.state_dict(), path)", "optimizer.load_state_dict(torch.load(path))"])
@pytest.mark.parametrize("name", [*_SEVERAL, *_ONE])
def test_state_of_an_optimizer_over_several_models_holds(name: str, use: str) -> None:
    optimizer = (_SEVERAL | _ONE)[name]
    analysis, texts = analyse_texts({"train.py": _PROGRAM.replace("{optimizer}", optimizer).replace("{use}", use)})
    assert any("of several models" in finding.message for finding in analysis.findings) == (name in _SEVERAL)
    if name in _SEVERAL:
        assert "fully_shard" not in texts["train.py"]
