"""Optimizers that are built after an evaluation: fully_shard would hand them what it has gathered."""

from __future__ import annotations

import pytest
from migrated_texts import migrated

PROGRAM = """import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def score(model):
    with torch.{context}():
        return model(torch.ones(2, 4)).sum().item()


def build(model):
    return torch.optim.AdamW(model.parameters())


def main():
    model = FSDP(nn.Linear(4, 4), use_orig_params=True)
    {body}


main()
"""
LOOP = "for _ in range(2):\n        optimizer = {}"


@pytest.mark.parametrize(("body", "context", "is_plain"), [
    ("optimizer = build(model)\n    score(model)", "no_grad", True),
    ("optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n    score(model)", "no_grad", True),
    ("score(model)\n    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)", "no_grad", False),
    ("score(model)\n    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)", "enable_grad", True),
    ("print(score(model))\n    optimizer = build(model)", "no_grad", False),
    ("with torch.no_grad():\n        model(torch.ones(2, 4))\n    optimizer = build(model)", "no_grad", False),
    ("with torch.no_grad():\n        torch.ones(2, 4)\n    optimizer = build(model)", "no_grad", True),
    (LOOP.format("build(model)"), "no_grad", False),
    (LOOP.format("torch.optim.SGD(model.parameters(), lr=0.1)"), "inference_mode", False),
])  # fmt: skip
def test_the_general_form_shards_again_before(body: str, context: str, is_plain: bool) -> None:
    text = migrated(train=PROGRAM.format(body=body, context=context))["train"]
    assert ("fully_shard(" in text) == is_plain
    assert ("shard_like_fsdp1(" in text) != is_plain
