"""``generate`` under ``summon_full_params``: registered where it computes with parameters outside of the model's call."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

SEEN = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(8, 8)

    def forward(self, x):
        return self.embed(x)

    def generate(self, x):
        return {result}


def main(x):
    model = FSDP(Net())
    with FSDP.summon_full_params(model, writeback=False, recurse=False):
        return model.generate(x)
"""
UNSEEN = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Wrapper:
    def __init__(self, model):
        self.model = model

    def generate(self, x):
        with FSDP.summon_full_params(self.model, writeback=False, recurse=False):
            return self.model.generate(x)


def shard(parts):
    for name, part in parts.named_children():
        setattr(parts, name, FSDP(part))
"""


@pytest.mark.parametrize(("result", "registered"), [("self.embed(x)", True), ("self(x)", False)])
def test_what_only_calls_the_model_needs_nothing(result: str, registered: bool) -> None:
    analysis, results = analyse_texts({"train.py": SEEN.format(result=result)})
    assert ('register_fsdp_forward_method(model, "generate")' in results["train.py"]) is registered
    assert "summon_full_params" not in results["train.py"] and "hasattr" not in results["train.py"]
    assert [f.level for f in analysis.findings if f.rule == "FS413"] == [Level.REVIEW if registered else Level.SAFE]


def test_one_of_several_models_is_asked_whether_it_generates() -> None:
    _, results = analyse_texts({"train.py": UNSEEN})
    expected = '        if hasattr(part, "generate"):\n            register_fsdp_forward_method(part, "generate")\n'
    assert expected in results["train.py"]
    assert "            return self.model.generate(x)" not in results["train.py"]
