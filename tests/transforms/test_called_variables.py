"""Calls of variables that may hold a wrapper's class."""

from __future__ import annotations

import pytest
from migrated_texts import migrated

FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as Wrapper\n"
DDP = "from torch.nn.parallel import DistributedDataParallel as Wrapper\n"
HANDED_IN = """from torch import nn


def construct(decoration=lambda model: model):
    model = nn.Linear(2, 2)
    return decoration(model)


construct(Wrapper)
construct()
"""
KEPT = """from torch import nn


class Trainer:
    def __init__(self, parallel):
        self.wrap = Wrapper if parallel else nn.Sequential

    def model(self):
        return self.wrap(nn.Linear(2, 2))


Trainer(True).model()
"""
CHOSEN = """from torch import nn


def construct(parallel):
    decoration = Wrapper if parallel else nn.Sequential
    model = decoration(nn.Linear(2, 2))
    return model


construct(True)
"""


@pytest.mark.parametrize("imported", [FSDP, DDP])
@pytest.mark.parametrize(
    ("program", "call"), [(HANDED_IN, "decoration(model)"), (KEPT, "self.wrap(nn"), (CHOSEN, "decoration(nn")]
)
def test_what_the_variable_holds_takes_the_wrappers_place(imported: str, program: str, call: str) -> None:
    text = migrated(train=imported + program)["train"]
    assert call in text and text.count("shard_like_") == 2  # its import, and where it goes into the variable
