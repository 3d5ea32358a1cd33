"""State dicts of DDP's models that are kept: they followed the weights, and gathered ones do not."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings

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
