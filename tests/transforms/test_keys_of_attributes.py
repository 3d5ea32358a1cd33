"""Whose state a method takes that knows a trainer by what a registry made: ``trainer.model`` is what trainers keep there."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

HOOK = """\
import torch


class Saver:
    def after_epoch(self):
        if torch.distributed.get_rank() == 0:
            torch.save({"state_dict": self.trainer.model.state_dict()}, "model.pt")
"""
TRAINER = """\
import registry


class Trainer:
    def __init__(self, config):
        self.hooks = [registry.build(one) for one in config]
        for hook in self.hooks:
            hook.trainer = self
        self.model = {made}
        self.net = {other}

    def train(self):
        self.model(torch.ones(2, 4)).sum().backward()
        for hook in self.hooks:
            hook.after_epoch()


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    Trainer(["saver"]).train()
"""


@pytest.mark.parametrize(
    ("made", "other", "is_wrapper"),
    [("DDP(nn.Linear(4, 4))", "None", True), ("nn.Linear(4, 4)", "DDP(self.model)", False)],
)
def test_an_attribute_of_an_owner_out_of_sight(made: str, other: str, is_wrapper: bool) -> None:
    trainer = HEAD + TRAINER.format(made=made, other=other)
    registry = "from hook import Saver\n\nknown = {'saver': Saver}\n\n\ndef build(name):\n    return pick(known, name)()\n"
    text = migrated(hook=HOOK, train=trainer, registry=registry)["hook"]
    assert ("model_state(" in text) == is_wrapper
