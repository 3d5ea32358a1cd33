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
