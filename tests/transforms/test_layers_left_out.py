"""Layers that a forward leaves out are named under FSDP1, which gave them gradients of zero."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

_TEXT = """\
import random

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(8, 8)
        self.b = torch.nn.Linear(8, 8)
        self.act = torch.nn.GELU()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8)])
        {line}

    def forward(self, x, task="a", labels=None):
        {body}


torch.cuda.set_device(local_rank)
model = {wrap}
"""
_BOTH = "return self.b(self.a(x))"


def _lines(body: str, line: str = "pass", wrap: str = "FSDP(Net())") -> list[int]:
    analysis, _ = analyse_texts({"train.py": _TEXT.format(body=body, line=line, wrap=wrap)})
    return [f.line for f in analysis.findings if f.rule == "FS315"]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("return self.a(x)", [12]),
        ("return self.layers[task](self.b(self.a(x)))", [18]),
        ("return self.a(x) if task else self.b(x)", []),
        (_BOTH, []),
        ("return self.layers[0](self.b(self.a(x)))", []),
        ("x = self.b(self.a(x))\n        if labels is not None:\n            x = self.act(x)\n        return x", []),
        ('if task == "a":\n            return self.a(x)\n        return self.b(x)', [18]),
        (
            "x = self.b(self.a(x))\n        for layer in self.layers:\n            if random.random() < 0.1:\n"
            "                continue\n            x = layer(x)\n        return x",
            [20],
        ),
        ("for child in self.children():\n            x = child(x)\n        return x", []),
    ],
)
def test_what_is_left_out(body: str, found: list[int]) -> None:
    assert _lines(body) == found


def test_ddp_has_its_own_answer() -> None:
    assert _lines("return self.a(x)", wrap="DDP(Net(), device_ids=[local_rank], broadcast_buffers=False)") == []
