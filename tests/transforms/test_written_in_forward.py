"""Writes into parameters while forward runs hold the model back; those between the steps do not."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

_TEXT = """\
import torch
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("count", torch.zeros(1), persistent=False)
        self.scale.data.fill_(2.0)

    def forward(self, x):
        {line}
        return self.layer(x) * self.scale

    def bound(self):
        self.scale.data.clamp_(0, 5)


torch.cuda.set_device(0)
model = DDP(Net(), device_ids=[0], broadcast_buffers=False)
"""


def _found(line: str) -> tuple[bool, bool]:
    """(whether FS706 speaks up, whether the model is sharded)"""
    analysis, results = analyse_texts({"train.py": _TEXT.format(line=line)})
    return any(f.rule == "FS706" for f in analysis.findings), "fully_shard(model)" in results["train.py"]


@pytest.mark.parametrize(
    "line",
    [
        "self.scale.data.clamp_(0, 5)",
        "self.scale.data = self.scale.data.clamp(0, 5)",
        "self.scale.data[0] = 1.0",
        "self.layer.weight.data.copy_(normalized(self.layer.weight))",
        "self.bound()",
    ],
)
def test_a_write_in_forward_holds_the_model(line: str) -> None:
    assert _found(line) == (True, False)


_OTHERS = [
    "pass", "self.count.add_(1)", "x.clamp_(0, 5)", "self.scale.requires_grad_(False)", "x = x * self.scale; x.clamp_(0, 5)",
]  # fmt: skip


@pytest.mark.parametrize("line", _OTHERS)
def test_other_lines_do_not(line: str) -> None:
    assert _found(line) == (False, True)


_MOMENTUM = """\
import copy

import torch
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def follow(leading, following):
    for p, q in zip(leading.parameters(), following.parameters()):
        q.data.mul_(0.9).add_(p.data, alpha=0.1)


class Momentum(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(4, 4)
        self.key = copy.deepcopy(self.query)

    @torch.no_grad()
    def update(self):
        {update}

    def forward(self, x):
        {call}
        return self.query(x) @ self.key(x).T


torch.cuda.set_device(0)
model = DDP(Momentum(), device_ids=[0])
"""
_UPDATES = {
    "in place": "for p, q in zip(self.query.parameters(), self.key.parameters()):\n            q.data.mul_(0.9).add_(p.data)",
    "replaced": "for p, q in zip(self.query.parameters(), self.key.parameters()):\n            q.data = q.data * 0.9 + p.data",
    "in a function": "follow(self.query, self.key)",
}


@pytest.mark.parametrize("name", _UPDATES)
def test_a_momentum_encoder_that_forward_updates_holds_the_model(name: str) -> None:
    text = _MOMENTUM.replace("{update}", _UPDATES[name])
    analysis, results = analyse_texts({"train.py": text.replace("{call}", "self.update()")})
    assert any(f.rule == "FS706" for f in analysis.findings) and "fully_shard" not in results["train.py"]
    analysis, results = analyse_texts({"train.py": text.replace("{call}", "pass")})
    assert not any(f.rule == "FS706" for f in analysis.findings) and "fully_shard" in results["train.py"]


_REGISTRY = """\
import importlib

import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def build(config):
    return getattr(importlib.import_module("models"), config["type"])()


def main(config):
    torch.cuda.set_device(0)
    return DDP(build(config), device_ids=[0])
"""


def test_models_that_a_registry_may_build_are_named() -> None:
    models = _TEXT.format(line="self.bound()").partition("torch.cuda.set_device")[0]
    analysis, results = analyse_texts({"train.py": _REGISTRY, "models.py": models + "import train\n"})
    (finding,) = [finding for finding in analysis.findings if finding.rule == "FS706"]
    assert (finding.level, finding.file) == (Level.REVIEW, "models.py")
    assert "fully_shard(" in results["train.py"]


_METHOD = """\
import torch
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def tune(self, x):
        {line}

    def forward(self, x):
        return self.layer(x)


torch.cuda.set_device(0)
model = DDP(Net(), device_ids=[0])
model.module.tune(batch)
"""


@pytest.mark.parametrize(
    ("line", "is_held"),
    [
        ("self.layer.weight.copy_(nn.functional.normalize(self.layer(x)))", True),
        ("self.layer.weight.data = self.layer(x)", True),
        ("return self.layer(x)", False),
    ],
)
def test_a_method_that_computes_and_writes_is_not_registered(line: str, is_held: bool) -> None:
    analysis, results = analyse_texts({"train.py": _METHOD.format(line=line)})
    levels = {finding.level for finding in analysis.findings if finding.rule == "FS308"}
    assert levels == {Level.MANUAL if is_held else Level.REVIEW}
    assert ("register_fsdp_forward_method" in results["train.py"]) != is_held
