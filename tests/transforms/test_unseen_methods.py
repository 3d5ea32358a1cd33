"""Methods of models whose code lies elsewhere: what computes has to be registered, and nothing here shows it."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from state_programs import DDP, FSDP, findings
from to_fsdp2.transforms.findings import Level

PROGRAM = """
from zoo import build


class Net(torch.nn.Module):
    def generate(self, x):
        return x


def evaluate(model, task):
    {use}


def main(task):
    model = DDP({model})
    evaluate(model.module, task)
"""


@pytest.mark.parametrize(
    ("use", "told"),
    [
        ("model.generate(1)", True),
        ("model.valid_step(1)", True),
        ("model.train()", False),
        ("model.print_trainable_parameters()", False),
        ("task.generate(model)", False),
    ],
)
def test_methods_that_compute_by_their_name(use: str, told: bool) -> None:
    found = findings(DDP, PROGRAM.format(use=use, model="build()"), "FS308")
    assert [(f.level, "code is not seen" in f.message) for f in found] == [(Level.MANUAL, True)] * told
    assert not findings(DDP, PROGRAM.format(use=use, model="Net()"), "FS308")


def test_model_that_is_handed_on_to_unseen_code() -> None:
    handed = PROGRAM.replace("evaluate(model.module, task)", "task.validate(model=model.module)")
    (finding,) = findings(DDP, handed.format(use="pass", model="build()"), "FS601")
    assert finding.level is Level.REVIEW and "register_fsdp_forward_method" in finding.message
    (finding,) = findings(DDP, handed.format(use="pass", model="Net()"), "FS601")
    assert "register_fsdp_forward_method" not in finding.message


def test_a_method_of_something_else_that_the_name_may_hold_is_not_registered() -> None:
    text = """\
import torch
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Backend(nn.Module):
    def __init__(self, path):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def warm_up(self, x):
        return self.layer(x)

    def forward(self, x):
        return self.layer(x)


def validate(model=None, path=""):
    if model is None:
        model = Backend(path)
        model.warm_up(torch.zeros(1, 4))
    return model(torch.zeros(1, 4))


net = nn.Linear(4, 4)
model = DDP(net)
validate(model=net)
"""
    _, results = analyse_texts({"train.py": text})
    assert "fully_shard(net)" in results["train.py"]
    assert "register_fsdp_forward_method" not in results["train.py"]


_TWO = '''\
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def encode(self, x):
        return self.layer(x)

    def forward(self, x):
        return self.encode(x).sum()


def make():
    return Net()


model = make()
teacher = make()
model = DDP(model, broadcast_buffers=False)
teacher = DDP(teacher, broadcast_buffers=False)
codes = model.module.encode(x)
loss = model(x) + teacher(x)
'''


def test_a_method_is_registered_on_the_models_that_it_is_called_on() -> None:
    _, texts = analyse_texts({"train.py": _TWO})
    assert texts["train.py"].count('register_fsdp_forward_method(model, "encode")') == 1
    assert texts["train.py"].count("register_fsdp_forward_method(") == 1


def test_a_method_that_makes_tensors_like_a_parameter_is_registered() -> None:
    text = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = torch.nn.GRUCell(4, 4)

    def init_hidden(self, size):
        weight = next(self.parameters())
        return weight.new_zeros(size, 4)

    def size(self):
        return next(self.parameters()).numel()


model = DDP(Net())
hidden, size = model.module.init_hidden(4), model.module.size()
"""
    (finding,) = findings(DDP, text, "FS308")
    assert finding.level is Level.REVIEW and finding.message.startswith("init_hidden ")


@pytest.mark.parametrize(
    ("use", "told"),
    [
        ("hidden = model.init_hidden(4)", True),
        ("hidden = next(model.parameters()).new_zeros(4, 4)", True),
        ("hidden = torch.zeros(4, 4)", False),
    ],
)
def test_tensors_that_are_made_like_a_parameter_of_fsdp1_are_named(use: str, told: bool) -> None:
    text = f"""
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = torch.nn.GRUCell(4, 4)

    def init_hidden(self, size):
        weight = next(self.parameters())
        return weight.new_zeros(size, 4)

    def forward(self, x):
        return self.cell(x, self.init_hidden(len(x)))


model = FSDP(Net(), use_orig_params=True)
{use}
"""
    assert [f.level for f in findings(FSDP, text, "FS702")] == [Level.MANUAL] * told
