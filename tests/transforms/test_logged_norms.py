"""Norms that clipping gave are numbers: what keeps them for a log keeps no parameters."""

from __future__ import annotations

import pytest
from migrated_texts import migrated

PROGRAM = """import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Log:
    def __init__(self):
        self.rows = []

    def add(self, value):
        self.rows.append(value)
        if dist.get_rank() == 0:
            write(self.rows)


def write(rows):
    print(rows)


def run(net, batches):
    model, log = FSDP(net, use_orig_params=True), Log()
    for x in batches:
        model(x).sum().backward()
        {logged}
"""


@pytest.mark.parametrize(
    ("logged", "is_held"), [("log.add(model.clip_grad_norm_(1.0))", False), ("log.add(list(model.parameters()))", True)]
)
def test_a_log_of_norms_is_no_work_on_models(logged: str, is_held: bool) -> None:
    assert ("whole_on_each_rank(" in migrated(train=PROGRAM.format(logged=logged))["train"]) == is_held
