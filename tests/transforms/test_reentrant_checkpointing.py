"""Checkpointing by re-entry becomes the other kind where the model has units, wherever it is asked for."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

_TRAIN = """\
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from net import Block, Net

net = Net()
{line}
model = FSDP(net, auto_wrap_policy={policy})
"""
_NET = """\
import torch
from torch.utils import checkpoint


class Block(torch.nn.Linear):
    pass


class Net(torch.nn.Module):
    def __init__(self, again=False):
        super().__init__()
        self.block = Block(4, 4)
        self.again = again

    def forward(self, x):
        return {call}
"""


def _results(call: str = "self.block(x)", line: str = "pass", policy: str = "ModuleWrapPolicy({Block})") -> dict[str, str]:
    texts = {"train.py": _TRAIN.format(line=line, policy=policy), "net.py": _NET.format(call=call)}
    return analyse_texts(texts)[1]


@pytest.mark.parametrize(
    ("call", "after"),
    [
        ("checkpoint.checkpoint(self.block, x)", "checkpoint.checkpoint(self.block, x, use_reentrant=False)"),
        ("checkpoint.checkpoint(self.block, x, use_reentrant=True)", "checkpoint.checkpoint(self.block, x, use_reentrant=False)"),
    ],
)
def test_calls_in_the_model(call: str, after: str) -> None:
    assert after in _results(call)["net.py"]
    assert call in _results(call, policy="None")["net.py"]


def test_settings_elsewhere() -> None:
    line = 'net.enable(options={"use_reentrant": True})'
    assert '{"use_reentrant": False}' in _results(line=line)["train.py"]
    line = "checkpoint_wrapper(net, CheckpointImpl.REENTRANT)"
    assert "CheckpointImpl.NO_REENTRANT" in _results(line=line)["train.py"]


def test_a_choice_is_named_alone() -> None:
    call = "checkpoint.checkpoint(self.block, x, use_reentrant=self.again)"
    analysis, results = analyse_texts(
        {"train.py": _TRAIN.format(line="pass", policy="ModuleWrapPolicy({Block})"), "net.py": _NET.format(call=call)}
    )
    assert call in results["net.py"]
    assert [f.level.value for f in analysis.findings if f.rule == "FS314"] == ["review"]
