"""Masks that are shaped like a gradient and filled by index are filled whole, then divided."""

from __future__ import annotations

import textwrap

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

HEAD = """\
import torch
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(8, 8)


model = DDP(Net())
model(batch).sum().backward()
grad = model.module.words.weight.grad
"""
USE = "model.module.words.weight.grad = grad * mask\n"
DIVIDED = """\
mesh = grad.device_mesh
mask = DTensor.from_local(mask, mesh, [Replicate()] * mesh.ndim, run_check=False)
mask = mask.redistribute(placements=grad.placements)
"""

FILLED = {
    "rows": (
        "mask = torch.zeros_like(grad)\nmask[3] = torch.ones_like(mask[3])\nmask[rows] = 1\n",
        "mask = torch.zeros(grad.shape, dtype=grad.dtype, device=grad.device)\n"
        "mask[3] = torch.ones_like(mask[3])\nmask[rows] = 1\n" + DIVIDED,
    ),
    "another type": (
        "mask = torch.full_like(grad, 0.5, dtype=torch.float32)\nmask[3] = 1\n",
        "mask = torch.full(grad.shape, 0.5, dtype=torch.float32, device=grad.device)\nmask[3] = 1\n" + DIVIDED,
    ),
}


@pytest.mark.parametrize(("fill", "filled"), FILLED.values(), ids=FILLED.keys())
def test_a_mask_is_filled_whole_and_divided(fill: str, filled: str) -> None:
    analysis, results = analyse_texts({"train.py": HEAD + fill + USE})
    assert filled + USE.replace(".module", "") in results["train.py"]
    assert {f.level for f in analysis.findings if f.rule == "FS702"} == {Level.REVIEW}


def test_a_helper_that_gets_plain_tensors_as_well_asks() -> None:
    helper = "def masked(grad):\n    mask = torch.zeros_like(grad)\n    mask[3] = 1\n    return grad * mask\n\n\n"
    text = HEAD.replace("class Net", helper + "class Net") + "print(masked(grad), masked(batch))\n"
    _, results = analyse_texts({"train.py": text})
    assert textwrap.indent("if isinstance(grad, DTensor):\n" + textwrap.indent(DIVIDED, "    "), "    ") in results["train.py"]


HOLDING = {
    "the gradient itself": "grad[3] = 0\n",
    "rows of the gradient": "mask = torch.zeros_like(grad)\nmask[3] = grad[3]\n" + USE,
    "with more between": "mask = torch.zeros_like(grad)\nprint(mask.shape)\nmask[3] = 1\n" + USE,
}


@pytest.mark.parametrize("body", HOLDING.values(), ids=HOLDING.keys())
def test_other_stores_hold(body: str) -> None:
    analysis, results = analyse_texts({"train.py": HEAD + body})
    assert Level.MANUAL in {f.level for f in analysis.findings if f.rule == "FS702"}
    assert "DDP(Net())" in results["train.py"]
