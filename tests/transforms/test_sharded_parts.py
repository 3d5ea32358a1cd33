"""Loads into models that a test calls plain, where parts of some model are sharded: their keys are checked as before."""

from __future__ import annotations

from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

PROGRAM = """\
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = DDP(nn.Linear(2, 2))


def load(model, path, strict=True):
    state = torch.load(path)
    if isinstance(model, DDP):
        model.module.load_state_dict(state)
        return
    target = model
    target.load_state_dict(state, strict=strict)


load({model}, "model.pt")
load(DDP(nn.Linear(2, 2)), "model.pt")
"""


def test_parts_keep_their_shards() -> None:
    analysis, results = analyse_texts({"train.py": PROGRAM.format(model="Parts()")})
    finding = next(f for f in analysis.findings if f.rule == "FS403" and f.line == 18)
    assert finding.level is Level.REVIEW
    assert "keys are checked as before" in finding.message
    assert "    target.load_state_dict(model_shards(target, state), strict=strict)" in results["train.py"]
    assert "def model_shards(model, state_dict):" in results["train.py"]


def test_plain_models_load_as_before() -> None:
    program = PROGRAM.format(model="nn.Linear(2, 2)").replace("DDP(nn.Linear(2, 2))\n\n", "nn.Linear(2, 2)\n\n")
    _, results = analyse_texts({"train.py": program})
    assert "    target.load_state_dict(state, strict=strict)" in results["train.py"]
