"""What FSDP1 showed of a rank's own part: its tensors, the marks on them, and the files that each rank writes for itself."""

from __future__ import annotations

import pytest
from migrated_texts import findings, migrated
from to_fsdp2.transforms.findings import Level

PROGRAM = """import hashlib
import os

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def is_sharded(value):
    return isinstance(value, ShardedTensor)


def f(net, options, path):
    model = FSDP(net, **options)
    optimizer = torch.optim.AdamW(model.parameters())
    rank = dist.get_rank()
    name = os.path.join(path, f"optimizer.{{rank}}.pt")
    state = model.state_dict()
    {body}
"""

ARRAYS = "return [hashlib.sha1(p.data.cpu().numpy()) for p in model.parameters()]"
MARKS = "return [hasattr(p, '_fsdp_flattened') for p in model.parameters()]"


@pytest.mark.parametrize(("body", "after"), [
    (ARRAYS, "hashlib.sha1(local_part(p.data.cpu()).numpy())"),
    ("return [p.grad.tolist() for p in model.parameters()]", "local_part(p.grad).tolist()"),
    (MARKS, "(isinstance(p, DTensor) or hasattr(p, '_fsdp_flattened'))"),
    ("for key, value in list(state.items()):\n        if isinstance(value, ShardedTensor):\n            del state[key]",
     "if isinstance(value, ShardedTensor):\n            del"),
    ("for key, value in list(state.items()):\n        if is_sharded(value):\n            continue\n        print(key)",
     "return isinstance(value, ShardedTensor)\n"),
    ("for key, value in list(state.items()):\n        if is_sharded(value):\n            print(key)",
     "return isinstance(value, (ShardedTensor, DTensor))\n"),
    ("torch.save(optimizer.state_dict(), name)", "torch.save(optimizer.state_dict(), name)"),
    ("saved = optimizer.state_dict()\n    torch.save(saved, name)", "saved = optimizer.state_dict()"),
    ("torch.save(optimizer.state_dict(), path)", "torch.save(optimizer_state(optimizer), path)"),
])  # fmt: skip
def test_it_is_as_it_was(body: str, after: str) -> None:
    assert after in migrated(train=PROGRAM.format(body=body))["train"]


def test_files_of_flat_parameters_are_told_of() -> None:
    found = findings(train=PROGRAM.format(body="torch.save(optimizer.state_dict(), name)"))
    assert [f.level for f in found if f.rule == "FS402" and "file of its own" in f.message] == [Level.REVIEW]
