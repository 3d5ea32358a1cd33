"""Which model an ``eval()`` is about: whole parameters are put back to shards only where the trained model ran."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

_PROGRAM = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from zoo import Net


def load(path):
    return Net(path)


def validate(data, model=None):
    model.eval()
    return sum(model(x) for x in data)


def export(path):
    model = load(path)
    {exported}
    model.eval()
    return model


def train(path, data):
    model = load(path)
    model = DDP(model, broadcast_buffers=False)
    optimizer = torch.optim.AdamW(model.parameters())
    for x in data:
        model(x).backward()
        optimizer.step()
    validate(data, model={validated})
    torch.save(optimizer.state_dict(), path)
"""


@pytest.mark.parametrize(
    ("exported", "validated", "evaluated"),
    [
        ("pass", "load(path)", False),
        ("path, model = str(path), model.half()", "load(path)", False),
        ("pass", "model", True),
        ("model = hand_over(model)", "model", True),
    ],
)
def test_whose_evaluation_it_is(exported: str, validated: str, evaluated: bool) -> None:
    _, texts = analyse_texts({"train.py": _PROGRAM.format(exported=exported, validated=validated)})
    assert "get_optimizer_state_dict(" in texts["train.py"]
    assert ("reshard()" in texts["train.py"]) is evaluated
