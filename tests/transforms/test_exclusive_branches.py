"""Branches that no program with a wrap comes to: what they do stays as it is, whatever models are elsewhere."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = (
    HEAD
    + """import argparse


def save(args, model):
    if {asked}:
        torch.save(model.state_dict(), "a.pt")


def main():
    args = argparse.ArgumentParser().parse_args()
    model = nn.Linear(4, 4)
    if {wrapped}:
        model = DDP(model)
    if {asked}:
        torch.save(model.state_dict(), "b.pt")
    model(torch.ones(2, 4)).sum().backward(){more}
    save(args, model)


main()
"""
)


def _left(wrapped: str, asked: str, more: str = "") -> list[bool]:
    program = PROGRAM.replace("{wrapped}", wrapped).replace("{asked}", asked).replace("{more}", more)
    text = migrated(train=program)["train"]
    lines = ('torch.save(model.state_dict(), "a.pt")', 'torch.save(model.state_dict(), "b.pt")')
    assert "DDP(model)" not in text.replace("shard_like_ddp(model)", "")
    return [line in text for line in lines]


@pytest.mark.parametrize(
    ("wrapped", "asked"),
    [
        ("args.distributed and not args.horovod", "args.horovod"),
        ("not args.horovod", "args.horovod and args.rank == 0"),
        ('args.backend == "ddp"', 'args.backend != "ddp"'),
        ("not args.horovod", "not (not args.horovod)"),
    ],
)
def test_what_excludes_the_wrap_stays(wrapped: str, asked: str) -> None:
    assert all(_left(wrapped, asked))


@pytest.mark.parametrize(
    ("wrapped", "asked", "more"),
    [
        ("args.distributed", "args.horovod", ""),
        ("args.distributed or not args.horovod", "args.horovod", ""),
        ("not args.horovod", "args.horovod", "\n    args.horovod = True"),
        ("not args.horovod", "args.horovod", "\n    if args.late:\n        model = DDP(model)"),
        ("not args.horovod", "args.get('horovod')", ""),
    ],
)
def test_what_may_come_with_a_wrap_does_not(wrapped: str, asked: str, more: str) -> None:
    assert not any(_left(wrapped, asked, more))


def test_a_guard_within_it_holds_nothing() -> None:
    text = migrated(
        train=HEAD
        + """import argparse


def evaluate(model):
    with torch.no_grad():
        return model(torch.ones(2, 4)).sum().item()


def main():
    args = argparse.ArgumentParser().parse_args()
    model = nn.Linear(4, 4)
    if args.local_rank != -1:
        model = DDP(model)
    model(torch.ones(2, 4)).sum().backward()
    if args.local_rank in [-1, 0]:
        if args.local_rank == -1 and args.evaluate:
            print(evaluate(model))
    print(evaluate(model))


main()
"""
    )["train"]
    assert "fully_shard(" in text
    assert "whole_on_each_rank(" not in text.partition("def main")[2]


INSIDE = (
    HEAD
    + """import argparse
import torch.distributed as dist


def prepare(model):
    return DDP(model)


def main():
    args = argparse.ArgumentParser().parse_args()
    model = nn.Linear(4, 4)
    if args.do_train:
        model = prepare(model)
        model(torch.ones(2, 4)).sum().backward()
    elif args.do_eval:
        if dist.get_rank() == 0:
            print(model(torch.ones(2, 4)))
    {more}


main()
"""
)


@pytest.mark.parametrize(("more", "is_plain"), [("pass", True), ("prepare(nn.Linear(4, 4)).train()", False)])
def test_tests_around_the_only_call_of_a_function_that_wraps_count(more: str, is_plain: bool) -> None:
    assert ("whole_on_each_rank(" not in migrated(train=INSIDE.format(more=more))["train"]) == is_plain


PROPERTIES = (
    HEAD
    + """import argparse


class Trainer:
    def __init__(self, args, model):
        self.args = args
        self.model = model
        if self.uses_ddp:
            self.model = DDP(self.model)
        self.save_without_ddp()

    @property
    def uses_ddp(self):
        return self.args.world_size > 1 and not self.uses_library

    @property
    def uses_library(self):
        return self.args.library

    def save_without_ddp(self):
        if self.uses_library:
            torch.save(self.model.state_dict(), "a.pt")


def main():
    args = argparse.ArgumentParser().parse_args()
    trainer = Trainer(args, nn.Linear(4, 4))
    trainer.model(torch.ones(2, 4)).sum().backward(){more}


main()
"""
)


@pytest.mark.parametrize(
    ("more", "is_plain"),
    [
        ("", True),
        ("\n    trainer.args = other", False),
        ("\n    Trainer(other, trainer.model)", False),
    ],
)
def test_properties_say_what_they_give(more: str, is_plain: bool) -> None:
    text = migrated(train=PROPERTIES.format(more=more))["train"]
    assert ('torch.save(self.model.state_dict(), "a.pt")' in text) == is_plain
