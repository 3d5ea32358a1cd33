"""Single parameters that one rank takes out of a model and computes with."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = (
    HEAD
    + """import torch.distributed as dist


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)


def train():
    model = DDP(Net())
    if dist.get_rank() == 0:
        {body}
"""
)


@pytest.mark.parametrize(
    "body",
    [
        "print(next(model.parameters()).sum())",
        "p = next(iter(model.module.parameters()))\n        print(p.norm().item())",
        "print(list(model.parameters())[0].norm())",
        "ps = list(model.parameters())\n        print(ps[-1].norm())",
        "d = dict(model.named_parameters())\n        print(d['head.weight'].norm())",
        'print(model.module.get_parameter("head.weight").norm())',
        "for p in [model.module.head.weight]:\n            print(p.norm())",
        "ps = [model.module.head.weight, model.module.head.bias]\n        for p in ps:\n            print(p.norm())",
    ],
)
def test_what_one_rank_computes_with_one(body: str) -> None:
    text = migrated(train=PROGRAM.format(body=body))["train"]
    assert "    with whole_on_each_rank(model):\n        if dist.get_rank() == 0:\n" in text


@pytest.mark.parametrize("body", ["print(next(model.parameters()).device)", "print(list(model.parameters())[0].shape)"])
def test_what_shards_answer_too(body: str) -> None:
    assert "whole_on_each_rank" not in migrated(train=PROGRAM.format(body=body))["train"]
