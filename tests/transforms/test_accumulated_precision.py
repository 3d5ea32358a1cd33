"""In which type gradients of micro-batches are added up: told only where it is another one than before."""

from __future__ import annotations

import pytest
from migrated_texts import findings

PROGRAM = """import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def run(net, batches, dtype, other):
    policy = MixedPrecision(param_dtype=dtype, reduce_dtype={reduced})
    model = FSDP(net, mixed_precision=policy)
    with model.no_sync():
        model(batches[0]).sum().backward()
    model(batches[1]).sum().backward()


run(torch.nn.Linear(2, 2), [torch.ones(1, 2)] * 2, torch.bfloat16, torch.float32)
"""


@pytest.mark.parametrize(("reduced", "is_told"), [("other", True), ("torch.float32", True), ("dtype", False)])
def test_what_is_added_up_in_another_type_is_told(reduced: str, is_told: bool) -> None:
    said = [f.message for f in findings(train=PROGRAM.format(reduced=reduced)) if f.rule == "FS301"]
    assert any("added the gradients of micro-batches up" in message for message in said) is is_told
