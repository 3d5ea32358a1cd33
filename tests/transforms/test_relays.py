"""Small helpers that hand their argument on: what goes in at one call does not come out at another."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Device:
    def __init__(self, name):
        self.name = name

    def move(self, tensor):
        return tensor.to(self.name)


def as_tuple(x):
    if isinstance(x, (list, tuple)):
        return tuple(x)
    return (x,)


def first(x):
    for found in as_tuple(x):
        return found


device = Device("cuda")
model = FSDP(build())
"""

PARAMETERS = {
    "a method": ("print(device.move(next(model.parameters())).item())\n", True),
    "a container": ("for p in as_tuple(list(model.parameters())):\n    print(p.grad.norm().item())\n", True),
    "a helper of a helper": ("print(first(list(model.parameters())).max().item())\n", True),
    "a counter through the same method": (
        "for p in model.parameters():\n    device.move(p)\nprint(device.move(torch.zeros(1)).item())\n", False
    ),
    "a counter through the same container": (
        "parameters = as_tuple(list(model.parameters()))\n"
        "for count in as_tuple([torch.zeros(1)]):\n    print(count.item())\n", False
    ),
    "a counter through a helper of a helper": (
        "weight = first(list(model.parameters()))\nprint(first([torch.zeros(1)]).item())\n", False
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_number_is_read_off_a_parameter_only_where_one_comes_in(name: str) -> None:
    code, is_read = PARAMETERS[name]
    analysis, _ = analyse_texts({"train.py": PROGRAM + code})
    found = [finding for finding in analysis.findings if finding.rule == "FS701"]
    assert bool(found) == is_read


def test_the_way_through_a_helper_is_told() -> None:
    code = "def wrap(model):\n    return FSDP(model)\n\n\nsharded = first(wrap(build()))\nsharded.clip_grad_norm_(1.0)\n"
    analysis, _ = analyse_texts({"train.py": PROGRAM + code})
    clipping = next(f for f in analysis.findings if f.symbol.endswith(".clip_grad_norm_"))
    texts = [step.text for step in clipping.provenance]
    assert texts[0] == "return FSDP(model)"
    assert "def as_tuple(x):" in texts
