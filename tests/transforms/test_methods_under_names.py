"""Methods of models that are called by a name of their own: DDP reduced no gradients of what ran past it, and that is told."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings, migrated

PROGRAM = (
    HEAD
    + """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def losses(self, x):
        return self.inner(x).sum()


def main(x, optimizer):
    model = DDP(Net())
    losses_of = model.module.losses
    {use}
    optimizer.step()
"""
)


USES = [("losses_of(x).backward()", True), ("loss = losses_of(x); loss.backward()", True), ("losses_of(x)", False)]


@pytest.mark.parametrize(("use", "is_told"), USES)
def test_what_learns_past_the_wrapper_is_told(use: str, is_told: bool) -> None:
    found = [finding for finding in findings(train=PROGRAM.format(use=use)) if finding.rule == "FS308"]
    assert any(finding.level == "review" for finding in found) == is_told


HANDED = HEAD + """from registry import take
from scores import scores


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def embed(self, x):
        return self.inner(x)

    @property
    def width(self):
        return 2


def main(name, data):
    model = DDP(take(name))
    scores(data, {given})
"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("model.module.embed", 'scores(data, forward_method(model, "embed"))'),
        ("embed=model.module.embed", 'scores(data, embed=forward_method(model, "embed"))'),
        ("model.module.width", "scores(data, model.width)"),
        ("model.module.names", "scores(data, model.names)"),
    ],
)
def test_a_method_of_an_unseen_model_that_is_handed_on_gathers(given: str, expected: str) -> None:
    assert expected in migrated(train=HANDED.format(given=given))["train"]
