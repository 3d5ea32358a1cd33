"""Wrappers that are asked for by the name of their class."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

_TRAIN = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    inner(DDP(torch.nn.Linear(2, 2), broadcast_buffers=False))


def inner(model):
    return {answer}
"""
_FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('type(model).__name__ == "DistributedDataParallel"', "isinstance(model, FSDPModule)"),
        ('model.__class__.__name__ != "DistributedDataParallel"', "not isinstance(model, FSDPModule)"),
        ('"DistributedDataParallel" in str(type(model))', "isinstance(model, FSDPModule)"),
        (
            'type(model).__name__ in ("DistributedDataParallel", "FullyShardedDataParallel")',
            "isinstance(model, FSDPModule)",
        ),
    ],
)
def test_the_model_is_asked_instead(before: str, after: str) -> None:
    _, results = analyse_texts({"train.py": _TRAIN.format(answer=before)})
    assert results["train.py"].endswith(f"    return {after}\n")


def test_other_classes_beside_it_hold() -> None:
    answer = 'type(model).__name__ in ("DistributedDataParallel", "Compiled")'
    _, results = analyse_texts({"train.py": _TRAIN.format(answer=answer)})
    assert "DDP(" in results["train.py"]


def test_one_wrapper_of_two_holds() -> None:
    program = _TRAIN.format(answer='type(model).__name__ == "DistributedDataParallel"')
    either = "    inner(FullyShardedDataParallel(torch.nn.Linear(2, 2)))\n\n\ndef inner"
    program = program.replace("\n\ndef inner", either).replace("DDP\n", "DDP\n" + _FSDP, 1)
    _, results = analyse_texts({"train.py": program})
    assert "DDP(" in results["train.py"]


def test_taking_off_data_parallel_as_well_is_right_as_it_is() -> None:
    answer = 'model.module if type(model).__name__ in ("DataParallel", "DistributedDataParallel") else model'
    analysis, results = analyse_texts({"train.py": _TRAIN.format(answer=answer)})
    assert "fully_shard(" in results["train.py"]
    assert not [finding for finding in analysis.findings if finding.rule == "FS616"]


def test_names_that_are_printed_are_no_question() -> None:
    analysis, _ = analyse_texts({"train.py": _TRAIN.format(answer='f"{type(model).__name__} DistributedDataParallel"')})
    assert not [finding for finding in analysis.findings if finding.rule == "FS616"]


@pytest.mark.parametrize(
    "answer",
    [
        'type(model).__name__.startswith("Distributed")',
        '"Parallel" in type(model).__name__',
        '{"DistributedDataParallel": 2.0}.get(type(model).__name__, 1.0)',
        'repr(model).startswith("DistributedDataParallel")',
        'model._get_name() == "DistributedDataParallel"',
    ],
)
def test_names_that_are_searched_or_looked_up_hold(answer: str) -> None:
    analysis, results = analyse_texts({"train.py": _TRAIN.format(answer=answer)})
    assert "DDP(torch" in results["train.py"]
    assert [finding for finding in analysis.findings if finding.rule == "FS616"]


def test_a_name_that_is_kept_and_compared_holds() -> None:
    program = _TRAIN.format(answer='name == "DistributedDataParallel"')
    program = program.replace("(model):\n", "(model):\n    name = type(model).__name__\n")
    _, results = analyse_texts({"train.py": program})
    assert "DDP(torch" in results["train.py"]


def test_a_name_that_a_function_gives_back_holds() -> None:
    program = "def kind(thing):\n    return type(thing).__name__\n\n\n" + _TRAIN.format(
        answer='kind(model) == "DistributedDataParallel"'
    )
    _, results = analyse_texts({"train.py": program})
    assert "DDP(torch" in results["train.py"]
