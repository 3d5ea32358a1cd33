"""Calls that both branches of a test of the rank make: all ranks come to them, and nothing is held."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings, migrated

PROGRAM = (
    HEAD
    + """import torch.distributed as dist


def train(models, writer):
    for x in range(3):
        models[0](torch.ones(2, 2)).sum().backward()
    {inside}


def show(model, writer):
    print(model(torch.ones(2, 2)))


def main(net, options, writer):
    model = DDP(net, **options)
    for _ in range(3):
        if dist.get_rank() == 0:
            {call}([model], writer)
        else:
            {other}([model], None)


main(nn.Linear(2, 2), {{}}, None)
"""
)


@pytest.mark.parametrize(
    ("call", "other", "inside", "is_held"),
    [
        ("train", "train", "pass", False),
        ("show", "show", "pass", False),
        ("show", "print", "pass", True),
        ("train", "train", "if dist.get_rank() == 0:\n        show(models[0], writer)", True),
    ],
)
def test_what_both_branches_call(call: str, other: str, inside: str, is_held: bool) -> None:
    program = PROGRAM.format(call=call, other=other, inside=inside).replace("def show(model,", "def show(models,")
    program = program.replace("print(model(torch", "print((models[0] if isinstance(models, list) else models)(torch")
    assert ("whole_on_each_rank(" in migrated(train=program)["train"]) == is_held
    assert not [f for f in findings(train=program) if f.level.value == "manual"]
