"""Tests for wrappers in programs that never make one: nothing is to be migrated there."""

from __future__ import annotations

import pytest
from migrated_texts import texts

MISC = """import contextlib
import torch


@contextlib.contextmanager
def ddp_sync(module, sync):
    if sync or not isinstance(module, torch.nn.parallel.DistributedDataParallel):
        yield
    else:
        with module.no_sync():
            yield
"""
TRAIN = """import torch
from misc import ddp_sync

model = torch.nn.Linear(2, 2)
with ddp_sync(model, False):
    model(torch.ones(2, 2)).sum().backward()
"""
WRAPS = """import torch
import train

model = torch.nn.parallel.DistributedDataParallel(train.model)
"""


@pytest.mark.parametrize("wraps", [False, True])
def test_they_stay_where_nothing_is_wrapped(wraps: bool) -> None:
    files = {"misc": MISC, "train": TRAIN} | ({"main": WRAPS} if wraps else {})
    assert (texts(files)["misc"] == MISC) != wraps
