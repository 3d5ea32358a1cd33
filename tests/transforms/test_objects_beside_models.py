"""Objects that travel together with models and are none."""

from __future__ import annotations

from migrating import analyse_texts

CODE = """\
import abc

import torch
from elsewhere import Base
from torch.nn.parallel import DistributedDataParallel as DDP


class Counter({base}):
    def __init__(self):
        super().__init__()
        self.steps = 0


def main(net):
    counter = Counter()
    for item in (net, counter):
        if isinstance(item, torch.nn.Module):
            item = DDP(item, broadcast_buffers=False)
    torch.save(counter.state_dict(), "counter.pt")
"""


def rules(base: str) -> list[str]:
    analysis, _ = analyse_texts({"train.py": CODE.format(base=base)})
    return [finding.rule for finding in analysis.findings]


def test_the_state_of_an_object_that_is_no_module_is_its_own() -> None:
    assert "FS402" not in rules("abc.ABC")


def test_the_state_of_a_module_is_that_of_a_model() -> None:
    assert "FS402" in rules("torch.nn.Module")


def test_what_derives_from_something_unseen_may_be_a_module() -> None:
    assert "FS402" in rules("Base")
