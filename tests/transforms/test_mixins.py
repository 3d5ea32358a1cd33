"""Classes that a program puts together as it runs: what one of them calls of itself, another has."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, texts

PARTS = HEAD + """import os


class Saving:
    def save(self):
        if {asked}self.args.rank != 0:
            return
        torch.save(self.serialize(), "a.pt")


class Training:
    def setup(self, args):
        self.args = args
        args.rank = int(os.environ["RANK"])
        if args.rank != 0:
            args.saves = False
        self.model = DDP(nn.Linear(4, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters())


class Base:
    def serialize(self):
        return {{"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}}
"""
MAIN = """import argparse
from parts import Base, Saving, Training


def main():
    args = argparse.ArgumentParser().parse_args()
    trainer = type("Trainer", (Saving, Training, Base), {})()
    trainer.setup(args)
    trainer.save()


main()
"""


@pytest.mark.parametrize(("asked", "needed"), [("", ""), ("not self.args.saves or ", ""),
                                               ("not self.args.makes or ", ", needed=self.args.makes")])  # fmt: skip
def test_the_state_is_gathered_in_front_of_the_test_of_the_rank(asked: str, needed: str) -> None:
    """Other ranks have ``saves`` turned off: whether it is needed is not to be asked for by it."""
    text = texts({"parts": PARTS.format(asked=asked), "main": MAIN})["parts"]
    assert f"with whole_on_each_rank(self{needed}):\n            if {asked}self.args.rank != 0:" in text
