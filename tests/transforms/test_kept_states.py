"""State dicts of DDP's models that are kept: they followed the weights, and gathered ones do not."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings, migrated

PROGRAM = (
    HEAD
    + """import copy


def state_of_model(model):
    return model.module.state_dict()


class Keeper:
    def __init__(self, net, options):
        self.model = DDP(net, **options)
        self.best = None

    def keep(self, average, batches):
        model = self.model
        {body}
        return best

    def restore(self):
        self.model.load_state_dict(self.best)


Keeper(nn.Linear(2, 2), {{}}).keep(None, [])
"""
)
LOOP = "for batch in batches:\n            model(batch).sum().backward()\n            best = {state}"


@pytest.mark.parametrize(("body", "kept"), [
    (LOOP.format(state="model.state_dict()"), True), (LOOP.format(state="{'model': model.state_dict()}"), True),
    ("with average.swapped(model):\n            best = model.state_dict()", True),
    ("best = self.best = None\n        self.best = model.state_dict()", True),
    (LOOP.format(state="state_of_model(model)"), True), ("best = state_of_model(model)", False),
    (LOOP.format(state="copy.deepcopy(model.state_dict())"), False),
    (LOOP.format(state="{k: v.clone() for k, v in model.state_dict().items()}"), False),
    ("with torch.no_grad():\n            best = model.state_dict()", False), ("best = model.state_dict()", False),
    (LOOP.format(state="None") + "\n            torch.save(model.state_dict(), 'x.pt')", False),
])  # fmt: skip
def test_what_is_read_later_is_told_of(body: str, kept: bool) -> None:
    levels = [f.level.value for f in findings(train=PROGRAM.format(body=body)) if f.rule == "FS402"]
    assert ("review" in levels) is kept


LISTED = HEAD + """

def tensors(model):
    {made}


class Trainer:
    def __init__(self, net, options):
        self.model = DDP(net, **options)
        self.weights = tensors(self.model)

    def step(self, x, shadows):
        self.model(x).sum().backward()
        for one, other in zip(shadows, self.weights):
            one.lerp_(other, 0.1)


Trainer(nn.Linear(2, 2), {{}}).step(torch.ones(1, 2), [])
"""


@pytest.mark.parametrize(("made", "follows"), [
    ("return list(model.state_dict().values())", True), ("kept = list(model.state_dict().values())\n    return kept, 1", True),
    ("return [w.clone() for w in model.state_dict().values()]", False), ("print(list(model.state_dict().values()))", False),
])  # fmt: skip
def test_tensors_that_are_kept_follow_the_weights(made: str, follows: bool) -> None:
    assert ("live_state(model).values()" in migrated(train=LISTED.format(made=made))["train"]) is follows


def test_what_a_lambda_is_handed_is_told_as_of_functions() -> None:
    program = HEAD + (
        "def save(model, path):\n    inner = lambda m: getattr(m, 'module', m)\n    state = lambda m: m.state_dict()\n"
        "    torch.save(state(inner(inner(model))), path)\n\n\n"
        "def main(net, options):\n    model = DDP(net, **options)\n    save(model, 'a.pt')\n\n\nmain(nn.Linear(2, 2), {})\n"
    )
    assert "model_state" not in migrated(train=program)["train"]
