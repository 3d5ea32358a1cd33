"""Ends of names that begin with a dot: what DDP puts in front gives names of a model's own attributes one."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings, migrated
from to_fsdp2.transforms.findings import Level

NET = "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {member}\n\n\n"


@pytest.mark.parametrize(
    ("member", "made", "stays"),
    [
        ("self.layer = nn.Linear(2, 2)", "Net()", True),
        ("self.bias = nn.Parameter(torch.zeros(2))", "Net()", False),
        ("self.register_parameter(NAME, nn.Parameter(torch.zeros(2)))", "Net()", False),
        ("self.layer = nn.Linear(2, 2)", "nn.Linear(2, 2)", False),
        ("self.layer = nn.Linear(2, 2)", "read()", False),
    ],
)
def test_names_stay_where_the_model_surely_has_no_such_attribute(member: str, made: str, stays: bool) -> None:
    groups = (
        "def groups(model):\n    plain, others = [], []\n    for name, p in model.named_parameters():\n"
        '        (plain if name.endswith(".bias") else others).append(p)\n    return plain, others\n\n\n'
    )
    text = HEAD + NET.format(member=member) + groups + f"def run(read):\n    return groups(DDP({made}))\n"
    assert ("for name, p in model.named_parameters():" in migrated(train=text)["train"]) is stays


@pytest.mark.parametrize(("other", "stays"), [("model.module", True), ("model", False)])
def test_names_of_a_model_that_comes_in_its_wrapper_and_out_of_it(other: str, stays: bool) -> None:
    """Both are one object now: names have no prefix then, and it is told."""
    groups = "def groups(model, skip):\n    return [p for name, p in model.named_parameters() if name not in skip]\n\n\n"
    run = f"def run(net, skip):\n    model = DDP(net)\n    return groups(model, skip), groups({other}, skip)\n"
    assert ("in model.named_parameters()" in migrated(train=HEAD + groups + run)["train"]) is stays
    told = [finding.level for finding in findings(train=HEAD + groups + run) if finding.rule == "FS609"]
    assert told == [Level.REVIEW if stays else Level.SAFE]


@pytest.mark.parametrize(("use", "stays"), [
    ("print('{} is trained'.format(name))", True), ("seen += '{} is trained'.format(name)", False),
    ("seen += 'qkv' in name", True), ("seen += name in skip", False),
])  # fmt: skip
def test_names_that_are_handed_to_a_function_are_followed_there(use: str, stays: bool) -> None:
    norms = f"def norms(named, seen, skip):\n    for name, p in named:\n        {use}\n    return seen\n\n\n"
    run = "def run(net, seen, skip):\n    model = DDP(net)\n    return norms(model.named_parameters(), seen, skip)\n"
    assert ("return norms(model.named_parameters(), seen, skip)" in migrated(train=HEAD + norms + run)["train"]) is stays


def test_functions_that_hand_names_to_each_other() -> None:
    both = "def one(named):\n    return other(named)\n\n\ndef other(named):\n    return one(named)\n\n\n"
    run = "def run(net):\n    model = DDP(net)\n    return one(model.named_parameters())\n"
    assert "return one(named_parameters(model))" in migrated(train=HEAD + both + run)["train"]
