"""A choice between FSDP1's scaler and torch's own goes where both ways are one."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

_HEAD = """\
import torch
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


def scaler_of(config):
"""
_OWN = "torch.cuda.amp.GradScaler"


def _after(body: str) -> str:
    text = analyse_texts({"train.py": _HEAD + body})[1]["train.py"]
    return text.partition("def scaler_of(config):\n")[2]


def test_branches_that_differ_in_sharding_become_one() -> None:
    body = (
        "    if config.fp16 and config.sharded:\n        scaler = ShardedGradScaler()\n"
        f"    elif config.fp16 and not config.sharded:\n        scaler = {_OWN}()\n    return scaler\n"
    )
    assert _after(body) == "    if config.fp16:\n        scaler = torch.amp.GradScaler()\n    return scaler\n"


@pytest.mark.parametrize(
    "other",
    [
        f"elif config.fp16 and config.amp:\n        scaler = {_OWN}()",
        f"elif config.fp16 and not config.sharded:\n        scaler = {_OWN}(enabled=False)",
        f"elif config.fp16 and not config.sharded:\n        other = {_OWN}()",
        f"elif config.fp16 and not config.sharded:\n        scaler = {_OWN}()\n    else:\n        scaler = None",
    ],
)
def test_branches_that_differ_otherwise_stay(other: str) -> None:
    body = f"    if config.fp16 and config.sharded:\n        scaler = ShardedGradScaler()\n    {other}\n    return scaler\n"
    assert _after(body) == body.replace("ShardedGradScaler()", "torch.amp.GradScaler()")


@pytest.mark.parametrize("test", ["config.ask()", "config.sharded"])
def test_an_expression_goes_unless_its_test_does_something(test: str) -> None:
    text = _after(f"    return ShardedGradScaler() if {test} else {_OWN}()\n")
    one = "    return torch.amp.GradScaler()"
    assert text == (f"{one} if {test} else {_OWN}()\n" if "ask" in test else f"{one}\n")
