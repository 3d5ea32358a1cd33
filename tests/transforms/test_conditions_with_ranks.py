"""States that are gathered in front of a guard, under what is left of its test without the rank."""

from __future__ import annotations

import ast

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = (
    HEAD
    + """import torch.distributed as dist


def train(net, options, path, steps, every, left, seen):
    model = DDP(net, **options)
    optimizer = torch.optim.AdamW(model.parameters())
    rank = dist.get_rank()
    for step in range(steps):
        if {test}:
            torch.save({{{saved}}}, path)
            left.remove(step)
            seen[step] = path
"""
)
MODEL = '"model": model.state_dict()'
BOTH = MODEL + ', "optimizer": optimizer.state_dict()'


@pytest.mark.parametrize(
    ("test", "asked"),
    [
        ("rank == 0 and step > 0 and step % every == 0 or step == steps", "step > 0 and step % every == 0 or step == steps"),
        ("step % every == 0 and rank == 0 or step == 2 and rank == 0", "step % every == 0 or step == 2"),
        ("rank == 0 or step % every == 0", None),
        ("rank == 0 and pick(step)", None),
        ("rank == 0 and step in left", None),
        ("rank == 0 and step not in seen", None),
    ],
)
def test_what_is_left_without_the_rank(test: str, asked: str | None) -> None:
    one = migrated(train=PROGRAM.format(test=test, saved=MODEL))["train"]
    gathered = one[: one.index(f"\n        if {test}:\n")].rpartition("model_state_dict = model_state(model)")[2]
    assert ast.dump(ast.parse(f"x{gathered}")) == ast.dump(ast.parse(f"x if {asked} else None" if asked else "x"))
    two = migrated(train=PROGRAM.format(test=test, saved=BOTH))["train"]
    lines = ["model_state_dict = model_state(model)", "optimizer_state_dict = optimizer.state_dict()"]
    indent = " " * (12 if asked else 8)
    gathered = "".join(f"{indent}{line}\n" for line in lines)
    assert (f"        if {asked}:\n" if asked else "") + gathered + f"        if {test}:\n" in two


SPLIT = [
    ("rank == 0 and step % every == 0", "step % every == 0"),
    ("(step % every == 0 or step == steps) and rank == 0", "step % every == 0 or step == steps"),
    ("rank == 0 and step in (round(steps * 0.1), steps - 1)", "step in (round(steps * 0.1), steps - 1)"),
]


@pytest.mark.parametrize(("test", "asked"), SPLIT)
@pytest.mark.parametrize("saved", [MODEL, BOTH])
def test_the_test_of_the_rank_moves_inside(test: str, asked: str, saved: str) -> None:
    text = migrated(train=PROGRAM.format(test=test, saved=saved))["train"]
    gathered = f"        if {asked}:\n            model_state_dict = model_state(model)\n"
    if saved == BOTH:
        gathered += "            optimizer_state_dict = optimizer.state_dict()\n"
    assert gathered + "            if rank == 0:\n                torch.save({" in text


@pytest.mark.parametrize(("test", "asked"), SPLIT)
def test_a_long_block_stays_where_it_is(test: str, asked: str) -> None:
    long = PROGRAM + "            seen[step] = path\n" * 4
    text = migrated(train=long.format(test=test, saved=MODEL))["train"]
    assert text[: text.index(f" else None\n        if {test}:\n")].endswith((f" if {asked}", f" if ({asked})"))


@pytest.mark.parametrize(("name", "is_rank"), [("training_ddp_rank", True), ("policy_dist_rank", True), ("lora_rank", False)])
def test_numbers_of_ranks_by_their_names(name: str, is_rank: bool) -> None:
    text = HEAD + f"def save(context, net, path):\n    model = DDP(net)\n    if context.{name} == 0:\n"
    new = migrated(train=text + "        torch.save(model.state_dict(), path)\n")["train"]
    assert ("if context" not in new.partition("state_dict")[0]) == is_rank


DIVIDED = (
    HEAD
    + """import torch.distributed as dist


def train(net, options, batches):
    model = DDP(net)
    for step, x in enumerate(batches):
        model(x).sum().backward()
        if {test}step % options.every == 0 and dist.get_rank() == 0:
            print(model(x).sum().item())
"""
)


@pytest.mark.parametrize(
    ("test", "needed"),
    [
        ("", "step % options.every == 0"),
        ("options.log.is_open() and ", "options.every and step % options.every == 0"),
    ],
)
def test_zero_may_be_what_a_test_in_front_tells_of(test: str, needed: str) -> None:
    text = migrated(train=DIVIDED.format(test=test))["train"]
    assert f"needed={needed})" in text or f"        if {needed}:\n            with whole_on_each_rank(" in text
