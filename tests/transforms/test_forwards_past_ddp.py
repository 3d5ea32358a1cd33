"""Forwards of the module inside of DDP, which sent no buffers: told of where ranks have buffers of their own."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings
from to_fsdp2.transforms.findings import Level

PROGRAM = (
    HEAD
    + """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.norm = {norm}(2)

    def forward(self, x):
        return self.norm(self.layer(x))


def evaluate(net, batches):
    return [net(x) for x in batches]


def count(net):
    return sum(p.numel() for p in net.parameters())


def run(options, x, batches):
    model = DDP(Net(), **options)
    {use}
"""
)
RUNS = ["evaluate(model.module, batches)", "evaluate(net=model.module, batches=batches)", "model.module(x)",
        "inner = model.module\n    evaluate(inner, batches)",
        "evaluate(model.module if hasattr(model, 'module') else model, batches)"]  # fmt: skip


def levels(use: str, norm: str) -> set[Level]:
    found = findings(train=PROGRAM.format(use=use, norm=norm))
    return {f.level for f in found if f.rule == "FS601" and "past DDP" in f.message}


@pytest.mark.parametrize("use", RUNS)
def test_it_is_told_of(use: str) -> None:
    assert levels(use, "nn.BatchNorm1d") == {Level.REVIEW}
    assert not levels(use, "nn.LayerNorm")


@pytest.mark.parametrize("use", ["count(model.module)", "torch.save(model.module.state_dict(), 'x')", "model(x)"])
def test_what_runs_nothing_is_not(use: str) -> None:
    assert not levels(use, "nn.BatchNorm1d")
