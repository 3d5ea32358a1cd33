"""Gradients of one rank alone, read inside of no_sync() or stepped on behind it: fully_shard has them elsewhere."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings, migrated
from to_fsdp2.transforms.findings import Level

PROGRAM = HEAD + """import contextlib

def flat(params):
    return torch.cat([p.grad.flatten() for p in params if p.grad is not None])


def perturb(params):
    for p in params:
        p.data.add_(p.grad)


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


SAM = """with model.no_sync():
    model(x).sum().backward()
perturb(model.parameters())
model(x).sum().backward()
optimizer.step()"""
TWICE = """with model.no_sync() if x is None else contextlib.nullcontext():
    model(x).sum().backward()
if x is None:
    perturb(model.parameters())
    model(x).sum().backward()
optimizer.step()"""
BY_NAME = """no_sync = getattr(model, "no_sync", contextlib.nullcontext)
with no_sync():
    model(x).sum().backward()
perturb(model.parameters())
model(x).sum().backward()
optimizer.step()"""


def _stays(body: str) -> bool:
    program = PROGRAM.format(body=body.replace("\n", "\n        "))
    found = findings(train=program)
    stays = any(f.rule == "FS120" and f.message.startswith("DDP stays") and f.level is Level.REVIEW for f in found)
    assert (migrated(train=program)["train"] == program) == stays
    return stays


@pytest.mark.parametrize("body", [
    "with model.no_sync():\n    backward_of_each([model(x).sum()], list(model.parameters()))",
    "with model.no_sync():\n    model(x).sum().backward()\n    print(flat(model.parameters()))",
    "with model.no_sync():\n    model(x).sum().backward()\noptimizer.step()",
    SAM,
    BY_NAME,
])  # fmt: skip
def test_a_model_whose_ranks_use_them_stays_in_ddp(body: str) -> None:
    assert _stays(body)


@pytest.mark.parametrize("body", [
    "with model.no_sync():\n    scaled(model(x).sum(), list(model.parameters()), update=False)\n"
    "model(x).sum().backward()\noptimizer.step()",
    "with model.no_sync():\n    model(x).sum().backward()\nmodel(x).sum().backward()\noptimizer.step()",
    SAM.replace("model.no_sync()", "model.no_sync() if len(batches) > 3 else contextlib.nullcontext()"),
    BY_NAME.replace("perturb(model.parameters())", "print(x)"),
    "if len(batches) > 3:\n    context = model.no_sync\nelse:\n    context = contextlib.nullcontext\nwith context():\n"
    "    model(x).sum().backward()\nif len(batches) > 2:\n    optimizer.step()",
])  # fmt: skip
def test_windows_that_a_backward_ends(body: str) -> None:
    assert not _stays(body)


@pytest.mark.parametrize(("body", "is_told"), [
    (TWICE, True), (TWICE.replace("if x is None:\n    perturb", "if x is None:\n    print(x)\n    perturb"), True),
    (TWICE.replace("    perturb(model.parameters())\n", ""), False), (TWICE.replace("if x is None:", "if x is not None:"), False),
])  # fmt: skip
def test_what_only_an_option_uses_them_for_is_told(body: str, is_told: bool) -> None:
    """The model is sharded for all other runs."""
    program = PROGRAM.format(body=body.replace("\n", "\n        "))
    assert any(f.rule == "FS301" and f.level is Level.MANUAL for f in findings(train=program)) == is_told
    assert "DDP(" not in migrated(train=program)["train"]


def test_no_wrap_stays_whose_class_stands_elsewhere() -> None:
    program = PROGRAM.format(body=SAM.replace("\n", "\n        "))
    by_partial = program.replace("DDP(nn.Linear(4, 4))", "functools.partial(DDP)(nn.Linear(4, 4))")
    text = migrated(train="import functools\n" + by_partial + "print(DDP(nn.Linear(2, 2)).module)\n")["train"]
    assert "partial(shard_like_ddp)" in text and "DDP(" not in text and ".module" not in text
    told = findings(train="import functools\n" + by_partial)
    assert any(f.rule == "FS301" and f.level is Level.MANUAL for f in told)


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
