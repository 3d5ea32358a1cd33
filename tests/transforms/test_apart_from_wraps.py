"""State of models that no wrap can have touched stays as it is."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

_TRAIN = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from model import build


def main(args):
    torch.cuda.set_device(args.rank)
    model = build()
    if args.distributed and not args.horovod:
        model = DDP(model, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if {test}:
        broadcast(model.state_dict())
    return model, optimizer


main(parse())
"""
_MODEL = """\
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)


def build():
    return Net()
"""
_EXPORT = """\
import torch
from model import build


def export(model, path):
    torch.save(model.state_dict(), path)


def main(path):
    export(build(), path)


{call}
"""


def _train(test: str, before: str = "") -> str:
    text = _TRAIN.format(test=test).replace("    model = build()\n", f"    model = build()\n{before}")
    return analyse_texts({"train.py": text, "model.py": _MODEL})[1]["train.py"]


@pytest.mark.parametrize("test", ["args.horovod", "not args.distributed", "args.horovod and args.rank >= 0"])
def test_state_beside_every_wrap_stays(test: str) -> None:
    text = _train(test)
    assert "fully_shard(model)" in text
    assert "broadcast(model.state_dict())" in text


@pytest.mark.parametrize(("test", "before"), [("args.other", ""), ("args.horovod", "    args.horovod = True\n")])
def test_state_that_may_be_of_the_wrapped_model_is_gathered(test: str, before: str) -> None:
    assert "get_model_state_dict(" in _train(test, before)


@pytest.mark.parametrize(("call", "stays"), [("main('model.pt')", True), ("", False)])
def test_state_in_a_program_of_its_own_stays(call: str, stays: bool) -> None:
    files = {"train.py": _TRAIN.format(test="False"), "model.py": _MODEL, "export.py": _EXPORT.format(call=call)}
    _, results = analyse_texts(files)
    assert "fully_shard(model)" in results["train.py"]
    assert ("torch.save(model.state_dict(), path)" in results["export.py"]) is stays


_SAVES = """import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save_plain(model, path):
    torch.save(model.state_dict(), path)


def train(model, config):
    if not config.enable_fsdp:
        save_plain(model, "model.pt")
    {other}


def main(config):
    model = torch.nn.Linear(2, 2)
    if config.enable_fsdp:
        model = FSDP(model)
    train(model, config)
"""


@pytest.mark.parametrize(
    ("other", "is_plain"),
    [("model(1)", True), ("save_plain(model, 'last.pt')", False), ("config.call(save_plain, model)", False)],
)
def test_a_function_that_is_called_beside_every_wrap_alone(other: str, is_plain: bool) -> None:
    text = analyse_texts({"train.py": _SAVES.replace("{other}", other)})[1]["train.py"]
    assert ("torch.save(model.state_dict(), path)" in text) is is_plain
