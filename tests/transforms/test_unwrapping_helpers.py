"""Optimizer state is kept by names without DataParallel's: the repository's own function takes its wrapper off."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

PROGRAM = """\
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def is_parallel(model):
    return type(model) in (nn.DataParallel, DDP)


def unwrap(model):
    \"\"\"The model itself.\"\"\"
    return {unwrapped}


def main(model, distributed, parallel):
    {first}
    if parallel and not distributed:
        model = nn.DataParallel(model)
    if distributed:
        model = DDP(model)
    optimizer = torch.optim.AdamW(model.parameters())
    print(unwrap(model))
    torch.save(optimizer.state_dict(), "optimizer.pt")
"""
CHOICES = ["model.module if is_parallel(model) else model", "model.module if isinstance(model, nn.DataParallel) else model"]


def migrated(unwrapped: str, first: str = "pass") -> str:
    return analyse_texts({"train.py": PROGRAM.format(unwrapped=unwrapped, first=first)})[1]["train.py"]


@pytest.mark.parametrize("unwrapped", CHOICES)
def test_own_function_is_called(unwrapped: str) -> None:
    text = migrated(unwrapped)
    assert "unwrap(model), optimizer, options=" in text
    assert "getattr" not in text


@pytest.mark.parametrize(
    ("unwrapped", "first"),
    [
        ("model.module if is_parallel(model) else None", "pass"),
        ("model.half()", "pass"),
        (CHOICES[0], "unwrap = print"),
    ],
)
def test_other_functions_are_not(unwrapped: str, first: str) -> None:
    assert 'getattr(model, "module", model)' in migrated(unwrapped, first)
