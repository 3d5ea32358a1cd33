"""Parameters of a class of the repository's own: sharded ones are DTensors, so DDP stays where programs ask for the class."""

from __future__ import annotations

from migrated_texts import HEAD, texts

OWN = """from torch import nn


class Tied(nn.Parameter):
    def partners(self):
        return self.others
"""
TRAIN = HEAD + """from own import Tied
from net import Net


def check(model: DDP):
    return all(isinstance(p, {asked}) for p in model.parameters())


def main(x):
    model = DDP(Net(Tied))
    assert isinstance(model, DDP) and check(model)
    model(x).sum().backward()


main(torch.ones(2, 2))
"""
NET = """import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.weight = kind(torch.ones(2))

    def forward(self, x):
        return x * self.weight
"""


def _migrated(asked: str) -> tuple[str, str]:
    program = TRAIN.format(asked=asked)
    return program, texts({"own": OWN, "net": NET, "train": program})["train"]


def test_ddp_and_the_tests_for_it_stay() -> None:
    program, text = _migrated("Tied")
    assert text == program


def test_a_class_that_nobody_asks_for_changes_nothing() -> None:
    _, text = _migrated("nn.Parameter")
    assert "= DDP(" not in text and "isinstance(model, FSDPModule)" in text
