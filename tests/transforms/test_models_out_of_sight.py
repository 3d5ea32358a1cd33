"""Wraps of models that nothing is seen to run, in programs that train: the analysis has lost sight of them."""

from __future__ import annotations

import pytest
from state_programs import DDP, findings
from to_fsdp2.transforms.findings import Level

PROGRAM = """
{decorator}
def build(depth):
    return Net(depth)


def main(batches):
    model = {build}
    for batch in batches:
        model(batch).sum().backward()
"""
DECORATOR = """
def distributed(function):
    def wrapped(*args):
        return DDP(function(*args))

    return wrapped
"""


@pytest.mark.parametrize(
    ("decorator", "build", "level"),
    [(DECORATOR + "\n\n@distributed", "build(2)", Level.REVIEW), ("", "DDP(build(2))", Level.SAFE)],
)
def test_the_wrap_is_for_review(decorator: str, build: str, level: Level) -> None:
    program = "class Net(torch.nn.Linear):\n    pass\n\n" + PROGRAM.format(decorator=decorator, build=build)
    (wrap,) = [f for f in findings(DDP, program, "FS120") if f.symbol.endswith("DistributedDataParallel")]
    assert wrap.level is level
    assert ("nothing is seen to run this model" in wrap.message) == (level is Level.REVIEW)


@pytest.mark.parametrize(("model", "is_named"), [("self.model", True), ("torch.nn.Linear(2, 2)", False)])
def test_other_methods_of_models_that_are_not_seen_are_named(model: str, is_named: bool) -> None:
    program = f"\nclass Evaluation:\n    def wrap(self):\n        self.model = DDP({model}, device_ids=[0])\n"
    (wrap,) = [f for f in findings(DDP, program, "FS120") if f.symbol.endswith("DistributedDataParallel")]
    assert ("register_fsdp_forward_method" in wrap.message) == is_named
