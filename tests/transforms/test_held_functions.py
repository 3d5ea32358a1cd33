"""Functions of which some ranks leave early: held whole by a decorator, where all their lines would move otherwise."""

from __future__ import annotations

import textwrap

import pytest
from migrated_texts import HEAD
from migrated_texts import migrated as migrate

EVALUATE = """
import torch.distributed as dist


def evaluate(model, loader, options):
    metrics = {}
%s
    if not options.parallel:
        if dist.get_rank() != 0:
            return metrics
    model.eval()
    for x in loader:
        if x is None:
            return metrics
        metrics["loss"] = model(x).sum().item()
    if metrics["loss"] > 3:
        return {"high": True}
    elif metrics["loss"] > 2:
        return {"middle": True}
    print(1)
    print(2)
    print(3)
    print(4)
    return metrics


def main(net, loader, options):
    model = DDP(net)
    evaluate(model, loader, options)
"""


def migrated(begin: str) -> str:
    return migrate(train=HEAD + EVALUATE % textwrap.indent(textwrap.dedent(begin), "    "))["train"]


def test_a_function_that_some_ranks_leave_is_decorated() -> None:
    text = migrated("names = ['a']")
    assert (
        "@holding_whole(lambda model, loader, options, *_, **__: (model,) if not options.parallel else ())\ndef evaluate(" in text
    )
    assert "with whole_on_each_rank" not in text.partition("def evaluate")[2]


_BEGINNINGS = ["model = model.module", "options.parallel = loader.parallel()", "for x in loader:\n    model(x)"]


@pytest.mark.parametrize("begin", _BEGINNINGS)
def test_what_is_done_before_the_guard_is_not_held(begin: str) -> None:
    text = migrated(begin)
    assert "holding_whole" not in text
    assert "with whole_on_each_rank(model, needed=not options.parallel):" in text
