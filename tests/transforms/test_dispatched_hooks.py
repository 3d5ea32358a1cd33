"""Hooks that some ranks alone have: ranks loop over lists of different lengths, so that the loop is held and not each turn."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = HEAD + """import torch.distributed as dist


class Saver:
    def after_step(self, trainer):
        torch.save(trainer.model.state_dict(), "x.pt")


class Printer:
    def after_step(self, trainer):
        print("step")


class Trainer:
    def __init__(self, net, options):
        self.model = DDP(net, **options)
        self.hooks = [Printer()]
        if dist.get_rank() == 0:
            self.hooks.append(Saver())

    def call(self, name):
        for hook in self.hooks:
            {call}

    def train(self):
        for step in range(3):
            self.call("after_step")


Trainer(nn.Linear(2, 2), dict()).train()
"""


@pytest.mark.parametrize("call", ["hook.after_step(self)", "getattr(hook, name)(self)"])
def test_the_loop_over_them_is_held(call: str) -> None:
    text = migrated(train=PROGRAM.format(call=call))["train"]
    lines = text.splitlines()
    held = next(i for i, line in enumerate(lines) if "whole_on_each_rank(" in line and "import" not in line)
    loop = next(i for i, line in enumerate(lines) if "for hook in self.hooks" in line)
    assert held == loop - 1
