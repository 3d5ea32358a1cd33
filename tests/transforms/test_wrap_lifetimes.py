"""What a call of a function wraps and drops is gone when the function is called again: models are plain there until the wrap."""

from __future__ import annotations

import pytest
from migrated_texts import migrated

PROGRAM = """import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

KEPT = []


class Holder:
    pass


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(2, 2)


def train(holder, weights):
    model = Net()
    if dist.get_rank() == 0:
        torch.save(weights.state_dict(), "start.pt")
    model = DDP(model)
    {keep}


def main(*weights):
    holder = Holder()
    for _ in range(3):
        {call}


if __name__ == "__main__":
    main(*settings())
"""


@pytest.mark.parametrize(
    ("keep", "call", "is_plain"),
    [
        ("model(1)", "train(holder, *weights)", True),
        ("del model", "train(holder, *weights)", True),
        ("(lambda: model.state_dict())()", "train(holder, *weights)", True),
        ("inner = Holder()\n    inner.model = model", "train(holder, *weights)", True),
        ("return model.module.state_dict()", "holder.state = train(holder, *weights)", True),
        ("return model", "train(holder, *weights)", False),
        ("return model.module", "last = train(holder, *weights)", False),
        ("return [model]", "holder.models = train(holder, *weights)", False),
        ("holder.model = model", "train(holder, *weights)", False),
        ("holder.save = lambda: model.state_dict()", "train(holder, *weights)", False),
        ("KEPT.append(model)", "train(holder, *weights)", False),
        ("global last\n    last = model", "train(holder, *weights)", False),
        ("Holder.model = model", "train(holder, *weights)", False),
        ("weights.model = model", "train(holder, *weights)", False),
        ("model(1)", "hand_on(train)(holder, *weights)", False),
    ],
)
def test_what_is_left_of_earlier_calls(keep: str, call: str, is_plain: bool) -> None:
    text = migrated(train=PROGRAM.format(keep=keep, call=call))["train"]
    assert ("    if dist.get_rank() == 0:\n        torch.save(weights.state_dict()" in text) == is_plain
