"""What two wraps of one function take alike is defined once, in front of the first."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

_HEAD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel as DDP
from nets import Block, build


def main(args, kind):
    model, teacher = build(args), build(args)
"""
_DDP = """\
    if args.distributed:
        model = DDP(model)
        if args.distill:
            teacher = DDP(teacher)
    loss(model(x), teacher(x)).backward()
"""
_FSDP = """\
    cpu = torch.device("cpu")
    {condition}model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({{Block}}), device_id=cpu)
    teacher = FSDP(teacher, auto_wrap_policy=ModuleWrapPolicy({{Block}}), device_id=cpu)
    loss(model(x), teacher(x)).backward()
"""


def _migrated(body: str) -> str:
    return analyse_texts({"train.py": _HEAD + body})[1]["train.py"]


def test_a_hook_is_defined_once() -> None:
    text = _migrated(_DDP)
    assert text.count("def broadcast_buffers(") == 1
    assert "fully_shard(teacher)\n            teacher.register_forward_pre_hook(broadcast_buffers)\n" in text


@pytest.mark.parametrize(("condition", "meshes"), [("", 1), ("if kind: ", 2)])
def test_a_mesh_is_made_once_where_both_always_take_it(condition: str, meshes: int) -> None:
    text = _migrated(_FSDP.format(condition=condition))
    assert "FSDP(" not in text
    assert text.count("init_device_mesh(") == meshes


def test_what_a_wrap_that_stays_would_define_is_defined_where_it_is_needed() -> None:
    text = _migrated(_DDP + "    with model.join():\n        pass\n")
    assert "model = DDP(model)" in text
    assert "fully_shard(teacher)" in text
    assert text.count("def broadcast_buffers(") == 1
