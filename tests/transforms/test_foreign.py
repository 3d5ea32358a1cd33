"""Models that reach code outside the repository through classes that derive from it."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

PROGRAM = """\
import torch
from third_party import Checkpointer
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Mine(Checkpointer):
{body}


def main(net):
    model = FSDP(net)
    {use}
"""
INHERITED = "    def exists(self):\n        return True\n"
HANDED_ON = "    def __init__(self, model, folder):\n        super().__init__(model, folder)\n"
OWN = (
    "    def save(self, name):\n        torch.save(self.options, name)\n"
    "\n    def load(self, name):\n        return super().load(name)\n"
)


@pytest.mark.parametrize(
    ("body", "use", "level"),
    [
        pytest.param(INHERITED, "Mine(model, 'runs').save('last')", Level.MANUAL, id="inherited constructor"),
        pytest.param(HANDED_ON, "Mine(model, 'runs').save('last')", Level.MANUAL, id="super().__init__"),
        pytest.param(INHERITED, "Mine().save_model(model)", Level.MANUAL, id="inherited method"),
        pytest.param(INHERITED, "Mine().watch(model)", Level.REVIEW, id="inherited method that saves nothing"),
        pytest.param(OWN, "Mine(model, 'runs').save('last')", Level.REVIEW, id="a class that saves by itself"),
    ],
)
def test_a_model_is_followed_into_bases_outside(body: str, use: str, level: Level) -> None:
    text = PROGRAM.format(body=body.rstrip("\n"), use=use)
    analysis, results = analyse_texts({"train.py": text})
    finding = next(f for f in analysis.findings if f.rule == "FS611")
    assert finding.level is level
    assert (results["train.py"] == text) is (level is Level.MANUAL)


def test_bases_of_torch_and_of_the_standard_library_are_known() -> None:
    text = PROGRAM.format(body=INHERITED.rstrip("\n"), use="Mine(model)")
    text = text.replace("from third_party import Checkpointer", "from abc import ABC as Checkpointer")
    analysis, _ = analyse_texts({"train.py": text})
    assert not [f for f in analysis.findings if f.rule == "FS611"]
