"""Tests whose branches come to do the same: the statements alone are left, unless the test itself does something."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = HEAD + """def main(net, other, args):
    model, critic = DDP(net, **args.options), DDP(other, **args.options)
    if {test}:  # as always
        inner = model.module
        judge = critic.module

    else:
        # one process
        inner = model
        judge = {other}
    return inner(torch.ones(2, 4)) + judge(torch.ones(2, 4))
"""


@pytest.mark.parametrize(("test", "other", "is_left"), [
    ("args.distributed", "critic", False),
    ("hasattr(args, 'distributed') and args.world > 1", "critic", False),
    ("next(args.flags)", "critic", True),
    ("args.distributed", "net", True),
])  # fmt: skip
def test_branches_that_do_the_same(test: str, other: str, is_left: bool) -> None:
    text = migrated(train=PROGRAM.format(test=test, other=other))["train"]
    assert (f"    if {test}:" in text) == is_left
    alone = "    # as always\n    # one process\n    inner = model\n    judge = critic\n    return"
    assert ("        judge = critic\n" if is_left else alone) in text


def test_branches_that_did_the_same_before_stay() -> None:
    program = HEAD + """def main(net, options, flag):
    model = DDP(net, **options)
    if flag:
        print(model.module.training)
    else:
        print(model.module.training)
"""
    assert "    if flag:\n        print(model.training)\n    else:\n" in migrated(train=program)["train"]


def test_an_elif_stays() -> None:
    program = HEAD + """def main(net, options, flag):
    model = DDP(net, **options)
    if flag > 2:
        return None
    elif flag:
        inner = model.module
    else:
        inner = model
    return inner
"""
    assert "    elif flag:\n        inner = model\n    else:\n        inner = model\n" in migrated(train=program)["train"]


@pytest.mark.parametrize(("front", "comment", "is_left"), [
    ("inner = model", "", False),
    ("inner = model", "  # the module", True),
    ("inner = net", "", True),
    ("inner = wrapped = model", "", True),
])  # fmt: skip
def test_an_assignment_that_repeats_the_one_in_front(front: str, comment: str, is_left: bool) -> None:
    program = HEAD + f"""def main(net, options, distributed):
    model = DDP(net, **options)
    print(model(torch.ones(2, 4)))
    {front}
    if distributed:
        inner = model.module{comment}
    return inner.state_dict()
"""
    assert ("    if distributed:\n" in migrated(train=program)["train"]) is is_left


@pytest.mark.parametrize(("choice", "new"), [
    ("list(model.module.children()) if distributed else list(model.children())", "list(model.children())"),
    ("list(model.module.children()) if distributed else list(net.parts)",
     "list(model.children()) if distributed else list(net.parts)"),
    ("list(model.module.children()) if next(distributed) else list(model.children())",
     "list(model.children()) if next(distributed) else list(model.children())"),
])  # fmt: skip
def test_a_choice_of_two_that_are_the_same(choice: str, new: str) -> None:
    program = HEAD + f"""def main(net, options, distributed):
    model = DDP(net, **options)
    inner = {choice}
    return inner
"""
    assert f"    inner = {new}\n" in migrated(train=program)["train"]
