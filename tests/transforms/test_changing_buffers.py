"""Whether a model has buffers that training changes, told from all that it is built of."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

HEAD = """\
import copy
import functools

import torch
import torch.nn as nn
import torchvision
from torch.nn.parallel import DistributedDataParallel as DDP
from zoo import Backbone, build_model


class Bn(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.BatchNorm1d(8)

    def forward(self, x):
        return self.layer(x)


class Plain(nn.Module):
    def __init__(self, width=8, act=None):
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.act = act or nn.ReLU()

    def forward(self, x):
        return self.act(self.layer(x))


class Holder(nn.Module):
    def __init__(self, backbone, width=4):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.backbone(x))


class Normed(nn.Module):
    def __init__(self, norm_layer=None):
        super().__init__()
        self.norm = (norm_layer or nn.LayerNorm)(8)

    def forward(self, x):
        return self.norm(x)


class Listed(nn.Module):
    def __init__(self, layers):
        super().__init__()
        for number, layer in enumerate(layers):
            setattr(self, f"layer{number}", layer)

    def forward(self, x):
        return self.layer0(x)


class Queue(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("queue", torch.zeros(8, 8))

    def forward(self, x):
        return self.layer(x) @ self.queue

    def push(self, x):
        PUSH


def block(norm=nn.BatchNorm1d):
    return nn.Sequential(nn.Linear(8, 8), norm(8))


def plain_block():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU())


torch.cuda.set_device(0)
"""

CHANGES = {
    "layers = [nn.Linear(8, 8), nn.BatchNorm1d(8)]\nmodel = nn.Sequential(*layers)",
    "layers = []\nfor _ in range(3):\n    layers.append(nn.Linear(8, 8))\n    layers.append(nn.BatchNorm1d(8))\n"
    "model = nn.Sequential(*layers)",
    "layers = [nn.Linear(8, 8)]\nlayers += [nn.BatchNorm1d(8)]\nmodel = nn.Sequential(*layers)",
    "model = nn.Sequential(*[nn.Linear(8, 8)], nn.BatchNorm1d(8)).to(0)",
    "model = nn.Sequential(nn.Linear(8, 8))\nmodel.append(nn.BatchNorm1d(8))",
    "model = nn.Sequential(nn.Linear(8, 8))\nmodel.add_module('norm', nn.BatchNorm1d(8))",
    "model = nn.Sequential(nn.Linear(8, 8), nn.Identity())\nmodel[1] = nn.BatchNorm1d(8)",
    "model = Plain()\nmodel.layer = nn.BatchNorm1d(8)",
    "norm = nn.BatchNorm1d(8)\nmodel = nn.Sequential(nn.Linear(8, 8), norm)",
    "model = nn.Sequential(block(), nn.Linear(8, 8))",
    "model = nn.Sequential(*[Bn() for _ in range(3)])",
    "model = Holder(Bn())",
    "model = Holder(nn.Sequential(nn.BatchNorm1d(8)))",
    "model = Normed(nn.BatchNorm1d)",
    "model = Normed(functools.partial(nn.BatchNorm1d, eps=1e-3))",
    "model = Listed([nn.Linear(8, 8), nn.BatchNorm1d(8)])",
    "norms = {'batch': nn.BatchNorm1d, 'layer': nn.LayerNorm}\nmodel = nn.Sequential(norms[name](8))",
    "model = copy.deepcopy(Bn())",
    "model = nn.utils.spectral_norm(nn.Linear(8, 8))",
    "model = nn.Sequential(nn.InstanceNorm1d(8, track_running_stats=True))",
    "model = nn.TransformerEncoder(Bn(), 2)",
    "model = Plain() if flag else Bn()",
    "model = Queue()\nmodel.queue[0] = 1",
}
UNSEEN = {
    "model = torchvision.models.resnet18()",
    "model = torchvision.models.resnet18()\nmodel.fc = nn.Linear(8, 8)",
    "back = torchvision.models.resnet18()\nmodel = nn.Sequential(back, nn.Linear(8, 8))",
    "back = torchvision.models.resnet18()\nmodel = nn.Sequential(*list(back.children())[:-1])",
    "model = nn.Sequential(torchvision.models.__dict__[name](), nn.Linear(8, 8))",
    "model = nn.Sequential(build_model('large'), nn.Linear(8, 8))",
    "model = Holder(build_model('large'))",
    "layers = [nn.Linear(8, 8)]\nlayers.append(getattr(nn, name)(8))\nmodel = nn.Sequential(*layers)",
    "model = nn.Sequential(getattr(nn, name)(8))",
    "class Own(Backbone):\n    pass\n\n\nmodel = Own()",
    "class Own(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.back = torch.hub.load('a', 'b')\n\n"
    "    def forward(self, x):\n        return self.back(x)\n\n\nmodel = Own()",
}
NONE = {
    "layers = [nn.Linear(8, 8), nn.ReLU()]\nmodel = nn.Sequential(*layers)",
    "layers = []\nfor _ in range(3):\n    layers.append(nn.Linear(8, 8))\nmodel = nn.Sequential(*layers)",
    "model = nn.Sequential(*(nn.Linear(width, width) for _ in range(3)))",
    "model = nn.Sequential(plain_block(), nn.Linear(8, 8))",
    "model = nn.Sequential(*[Plain() for _ in range(3)])",
    "model = Holder(Plain())",
    "model = Normed()",
    "model = Listed([nn.Linear(8, 8)])",
    "model = nn.utils.weight_norm(nn.Linear(8, 8))",
    "model = nn.Sequential(nn.InstanceNorm1d(8))",
    "model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), number)",
    "model = Queue()",
}


def hook_and_reason(body: str, push: str = "return x") -> tuple[bool, bool]:
    """Whether a hook broadcasts the buffers, and whether that is because not all of the model is seen."""
    text = HEAD.replace("PUSH", push) + body + "\nmodel = DDP(model)\n"
    analysis, results = analyse_texts({"train.py": text})
    assert "fully_shard(model)" in results["train.py"]
    unseen = any("the code of the model is not all seen" in f.message for f in analysis.findings)
    return "register_forward_pre_hook" in results["train.py"], unseen


@pytest.mark.parametrize("body", sorted(CHANGES))
def test_running_statistics_are_seen_wherever_a_part_comes_from(body: str) -> None:
    assert hook_and_reason(body) == (True, False)


@pytest.mark.parametrize("body", sorted(UNSEEN))
def test_parts_out_of_sight_are_for_review(body: str) -> None:
    assert hook_and_reason(body) == (True, True)


@pytest.mark.parametrize("body", sorted(NONE))
def test_no_hook_where_all_parts_are_known(body: str) -> None:
    assert hook_and_reason(body) == (False, False)


@pytest.mark.parametrize("push", ["self.queue[0] = x", "self.queue.data.copy_(x)", "self.queue += x", "self.queue[1:].zero_()"])
def test_buffers_that_a_model_writes_in_part_change(push: str) -> None:
    assert hook_and_reason("model = Queue()", push) == (True, False)


def test_a_layer_that_nobody_is_seen_to_give_is_named() -> None:
    text = HEAD + "\ndef train(net):\n    model = DDP(nn.Sequential(net, nn.Linear(8, 8)))\n    return model\n"
    analysis, results = analyse_texts({"train.py": text})
    assert "register_forward_pre_hook" in results["train.py"]
    assert any("the code of the model is not all seen" in finding.message for finding in analysis.findings)


def test_what_is_not_seen_is_named() -> None:
    text = HEAD + "model = nn.Sequential(torchvision.models.resnet18(), nn.Linear(8, 8))\nmodel = DDP(model)\n"
    analysis, _ = analyse_texts({"train.py": text})
    assert any("not all seen (torchvision.models.resnet18)" in finding.message for finding in analysis.findings)
