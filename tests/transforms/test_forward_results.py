"""Tensors that come out of a forward are whole: the parameters that they are computed from were gathered there."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

NET = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        return {"y": self.head(x), "size": self.head.weight.norm(), "weight": self.head.weight}


class Size(nn.Module):
    def forward(self, net):
        return {"size": net.head.weight.norm()}


model = DDP(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
out = model(batch)
out["y"].sum().backward()
optimizer.step()
"""

WHOLE = {
    "on one rank": 'size = out["size"]\nif dist.get_rank() == 0:\n    print(size.item())\n',
    "on all ranks": 'print(out["size"].item())\n',
    "the parameter itself": 'print(out["weight"].sum().item())\n',
    "collected": 'sizes = []\nsizes.append(out["size"])\nprint(float(sizes[0]))\n',
}

SHARDED = {
    "read off the model": "print(model.module.head.weight.norm().item())\n",
    "either way": (
        "def show(value):\n    print(value.item())\n\n\n"
        'show(out["size"])\nshow(model.module.head.weight.norm())\n'
    ),
    "out of the forward of another module": 'print(Size()(model.module)["size"].item())\n',
}


@pytest.mark.parametrize("use", WHOLE.values(), ids=WHOLE.keys())
def test_results_of_the_forward_are_read_as_they_are(use: str) -> None:
    analysis, results = analyse_texts({"train.py": NET + use})
    assert not [finding for finding in analysis.findings if finding.rule == "FS701"]
    assert use in results["train.py"]


@pytest.mark.parametrize("use", SHARDED.values(), ids=SHARDED.keys())
def test_what_may_be_a_shard_is_looked_at(use: str) -> None:
    analysis, _ = analyse_texts({"train.py": NET + use})
    assert [finding for finding in analysis.findings if finding.rule == "FS701"]


def test_helpers_of_a_models_own_code_work_on_whole_tensors() -> None:
    helper = "def row(weight):\n    return weight.view(1, -1)\n\n\n"
    model = NET.replace('"weight": self.head.weight', '"weight": row(self.head.weight)')
    analysis, _ = analyse_texts({"train.py": model.replace("class Net", helper + "class Net")})
    assert not [finding for finding in analysis.findings if finding.rule == "FS702"]
