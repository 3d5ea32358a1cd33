"""FSDP1 asks a CustomPolicy about every module: where its function does more than answer, that still happens."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

_TEXT = """\
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import CustomPolicy

seen = []


def choose(module):
{body}


def shard(model, ignored):
    return FSDP(model, auto_wrap_policy=CustomPolicy(choose){more})
"""


def _migrated(body: str, more: str = "") -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines()).rstrip("\n")
    _, results = analyse_texts({"train.py": _TEXT.format(body=lines, more=more)})
    return results["train.py"]


@pytest.mark.parametrize(
    "body",
    [
        "return isinstance(module, nn.Linear)",
        "found = isinstance(module, nn.Linear)\nreturn bool(found and len(list(module.children())) == 0)",
    ],
)
def test_functions_that_only_answer_are_asked_in_the_loop(body: str) -> None:
    assert "module is not model and choose(module)" in _migrated(body)


@pytest.mark.parametrize(
    "body",
    [
        "module.register_forward_hook(print)\nreturn isinstance(module, nn.Linear)",
        "module.known = True\nreturn isinstance(module, nn.Linear)",
        "seen.append(module)\nreturn isinstance(module, nn.Linear)",
        "global seen\nseen = module\nreturn isinstance(module, nn.Linear)",
    ],
)
def test_functions_that_do_more_are_asked_about_all(body: str) -> None:
    text = _migrated(body)
    assert "    answers = [(module, choose(module)) for module in model.modules()]\n" in text
    assert "    for module, answer in reversed(answers):\n        if answer and module is not model:\n" in text
    assert "            fully_shard(module)\n" in text


def test_what_is_ignored_is_not_asked_about() -> None:
    text = _migrated("seen.append(module)\nreturn isinstance(module, nn.Linear)", ", ignored_modules=ignored")
    assert (
        "    answers = [\n"
        "        (module, choose(module))\n"
        "        for module in model.modules()\n"
        "        if ignored_params.isdisjoint(module.parameters())\n"
        "        or not ignored_params.issuperset(module.parameters())\n"
        "    ]\n"
    ) in text
