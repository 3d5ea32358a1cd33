"""Models that were just made are plain, though the program wraps models and may have done so before."""

from __future__ import annotations

import pytest
from migrated_texts import migrated
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

HEAD = """import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(torch.nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.body = torch.nn.Linear(cfg, cfg)


def build(cfg):
    net = Net(cfg).to("cpu")
    if cfg > 2:
        net = Net(cfg + 1)
    return net


"""
PAIR = "def pair(cfg):\n    net = Net(cfg)\n    if cfg > 3:\n        return net, cfg\n    return net\n\n\n"
READ = "def read(model, path):\n    model.load_state_dict(torch.load(path))\n\n\n"
LOADS = "net.load_state_dict(state)"


def is_rewritten(body: str, call: str = "run(1, {}); run(2, {})") -> bool:
    """Whether a load in the function ``run(cfg, state)`` is taken for one of a model that may be sharded."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    text = HEAD + (PAIR if "pair(" in body else "") + (READ if "read(" in body else "") + "def run(cfg, state):\n" + lines
    source = Source.decode("train.py", (text + f"\n\nif __name__ == '__main__':\n    {call}\n").encode())
    analysis = analyse([extract(source)], {"train.py": source}.__getitem__, Options(target_torch=(2, 13)), paths=["train.py"])
    assert not analysis.errors
    return analysis.texts["train.py"].count("load_model_state(") + analysis.texts["train.py"].count("load_state(") > 0


@pytest.mark.parametrize(
    "body",
    [
        f"net = Net(cfg)\n{LOADS}\nnet = FSDP(net)",
        f"net = build(cfg)\n{LOADS}\nnet = FSDP(net)",
        f"net = Net(cfg)\nif cfg:\n    net = Net(2)\n{LOADS}\nwrapped = FSDP(net)",
        f"if cfg:\n    net = Net(2)\nelse:\n    net = build(cfg)\n{LOADS}\nwrapped = FSDP(net)",
        "net = Net(cfg)\nnet = net.to('cpu')\nplain = net\nplain.load_state_dict(state)\nwrapped = FSDP(plain)",
        "net = Net(cfg)\nread(net, 'x')\nnet = FSDP(net)",
        "old = FSDP(Net(cfg))\nnet = Net(cfg)\nnet.body.load_state_dict(state)\nprint(old)",
        f"old = FSDP(Net(cfg))\nnet = Net(cfg)\n{LOADS}\nnet = FSDP(net)",
        f"for cfg in range(2):\n    net = Net(cfg)\n    {LOADS}\n    net = FSDP(net)",
        f"import copy\nold = FSDP(Net(cfg))\nnet = copy.deepcopy(old)\n{LOADS}\nnet = FSDP(net)",
        f"net = torch.load('x')['net'].float()\n{LOADS}\nnet = FSDP(net)",
        f"net = pair(cfg)\n{LOADS}\nnet = FSDP(net)",
        f"net = state['net']\n{LOADS}\nnet = FSDP(net)",
    ],
)  # fmt: skip
def test_what_was_just_made_is_plain(body: str) -> None:
    assert not is_rewritten(body)


@pytest.mark.parametrize(
    "body",
    [
        f"net = Net(cfg)\nnet = FSDP(net)\n{LOADS}",
        f"net = Net(cfg)\nwrapped = FSDP(net)\n{LOADS}",
        f"net = Net(cfg)\nif cfg:\n    net = FSDP(net)\n{LOADS}",
        f"net = Net(cfg)\nfor _ in range(2):\n    {LOADS}\n    wrapped = FSDP(net)",
        f"for i in range(2):\n    if i == 0:\n        net = Net(cfg)\n    {LOADS}\n    wrapped = FSDP(net)",
        "net = Net(cfg)\nread(net, 'x')\nnet = FSDP(net)\nread(net.module, 'x')",
        f"net = Net(cfg)\nwrapped = FSDP(net.body)\n{LOADS}",
        f"net = torch.nn.ModuleList()\nhead = Net(cfg)\nhead = FSDP(head)\nnet.append(head)\n{LOADS}",
        f"net = {{'net': Net, 'wrapped': lambda cfg: FSDP(Net(cfg))}}[state['name']](cfg)\n{LOADS}",
        f"net = {{'net': Net, 'wrapper': FSDP}}[state['name']](cfg)\n{LOADS}",
        f"def wrap():\n    FSDP(net)\nnet = Net(cfg)\nwrap()\n{LOADS}",
        f"global net\nif cfg:\n    net = Net(cfg)\n{LOADS}\nnet = FSDP(net)",
        f"net = Net(cfg)\ndef wrap():\n    nonlocal net\n    net = FSDP(net)\nfor step in hooks(wrap):\n    step()\n{LOADS}",
    ],
)  # fmt: skip
def test_what_may_have_been_wrapped_is_not(body: str) -> None:
    assert is_rewritten(body)


MADE = """
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self, path, {given}):
        super().__init__()
        self.body = {body}
        self.load(path)

    def load(self, path):
        self.body.load_state_dict(torch.load(path))
        print(self.state_dict())


def main(path):
    net = FSDP(Net(path, {value}))
    {after}


main("net.pt")
"""


@pytest.mark.parametrize(
    ("given", "body", "value", "after", "is_needed"),
    [
        ("size", "nn.Linear(size, size)", "4", "return net", False),
        ("size", "FSDP(nn.Linear(size, size))", "4", "return net", True),
        ("inner", "inner", "FSDP(nn.Linear(4, 4))", "return net", True),
        ("size", "nn.Linear(size, size)", "4", "net.module.load(path)", True),
    ],
)
def test_an_object_that_is_being_made_is_plain(given: str, body: str, value: str, after: str, is_needed: bool) -> None:
    text = migrated(train=MADE.format(given=given, body=body, value=value, after=after))["train"]
    assert ("self.body.load_state_dict(" in text) != is_needed


HANDED = """import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from registry import trainers


class Average(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module


class Base:
    def __init__(self, net):
        self.net = net


class Trainer(Base):
    def __init__(self, net, average):
        super().__init__(net)
        self.inner = self.net.module
        if average:
            self.inner = self.inner.module
        print(self.inner.state_dict())


def main(name, average):
    model = DDP(Average(nn.Linear(4, 4)) if average else nn.Linear(4, 4))
    Base(model)
    return trainers[name](model, average)


main("x", True)
"""


def test_what_nobody_sees_hand_in_is_not_surely_plain() -> None:
    """The wrapper is taken off once; the `.module` of the average in it is that of its class."""
    text = migrated(train=HANDED)["train"]
    assert "self.inner = unwrap(self.net)\n" in text or "self.inner = self.net\n" in text
    assert "self.inner = self.inner.module\n" in text
