"""Gradients of one rank alone, read inside of no_sync() or stepped on behind it: fully_shard has them elsewhere."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings, migrated
from to_fsdp2.transforms.findings import Level

PROGRAM = HEAD + """

def flat(params):
    return torch.cat([p.grad.flatten() for p in params if p.grad is not None])


def backward_of_each(losses, params):
    for loss in losses:
        loss.backward(retain_graph=True)
    return flat(params)


def scaled(loss, params, update):
    loss.backward()
    if update:
        print(flat(params).norm())


def main(batches):
    model = DDP(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches:
        {body}


main([torch.ones(2, 4)])
"""


def _is_told(body: str) -> bool:
    found = findings(train=PROGRAM.format(body=body.replace("\n", "\n        ")))
    return any(f.rule == "FS301" and f.level is Level.MANUAL for f in found)


@pytest.mark.parametrize("body", [
    "with model.no_sync():\n    backward_of_each([model(x).sum()], list(model.parameters()))",
    "with model.no_sync():\n    model(x).sum().backward()\n    print(flat(model.parameters()))",
    "with model.no_sync():\n    model(x).sum().backward()\noptimizer.step()",
])  # fmt: skip
def test_what_reads_them_is_told_of(body: str) -> None:
    assert _is_told(body)


@pytest.mark.parametrize("body", [
    "with model.no_sync():\n    scaled(model(x).sum(), list(model.parameters()), update=False)\n"
    "model(x).sum().backward()\noptimizer.step()",
    "with model.no_sync():\n    model(x).sum().backward()\nmodel(x).sum().backward()\noptimizer.step()",
])  # fmt: skip
def test_windows_that_a_backward_ends(body: str) -> None:
    assert not _is_told(body)


CALLBACK = HEAD + """import torch.distributed as dist


class Trainer:
    def __init__(self, callbacks):
        self.model, self.callbacks = DDP(nn.Linear(4, 4)), callbacks

    def unwrap(self):
        return self.model.module

    def call(self, hook):
        for callback in self.callbacks:
            getattr(callback, hook)(self)


class Histogram:
    def on_end(self, trainer):
        if dist.get_rank() != 0:
            return
        for name, p in trainer.unwrap().named_parameters():
            print(name, torch.histc(p.float(), bins=4))


Trainer([Histogram()]).call("on_end")
"""


def test_parameters_of_what_a_call_unwraps_behind_a_guard() -> None:
    assert "whole_on_each_rank(" in migrated(train=CALLBACK)["train"]
