"""Models that a library's functions are handed: nothing shows what they are, and all that is done with them is seen."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = (
    HEAD
    + """import torch.distributed as dist


def log(model):
    for parameter in model.parameters():
        print(parameter.norm())


def train({parameter}):
    model = DDP({net})
    if dist.get_rank() == 0:
        {body}
"""
)
BODIES = [
    "for n, p in model.module.named_parameters():\n            print(p.norm().item())",
    "for p in model.module.parameters():\n            print(p.grad.norm().item())",
    "print(sum(p.norm() for p in model.module.parameters()))",
    "print(model.module.head(1))",
    "print(model.module(1))",
    "log(model.module)",
]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(("parameter", "net"), [("net", "net"), ("net: nn.Module", "net"), ("config", "config.net")])
def test_what_one_rank_computes_with_parameters(parameter: str, net: str, body: str) -> None:
    text = migrated(train=PROGRAM.format(parameter=parameter, net=net, body=body))["train"]
    assert "    with whole_on_each_rank(model):\n        if dist.get_rank() == 0:\n" in text
