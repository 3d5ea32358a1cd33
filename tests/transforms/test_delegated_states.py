"""Objects that say the state of others: where they ask for it is the place to gather."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = (
    HEAD
    + """import copy


class Average:
    def __init__(self, model, decay):
        self.model, self.decay = copy.deepcopy(model), decay
        self.shadow = [p.data for p in model.parameters()]
        self.steps = 0

    def state_dict(self):
        return {state}

    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])


def main(options, path):
    model = DDP(nn.Linear(2, 2), **options)
    average = Average(model.module, 0.9)
    average.load_state_dict(torch.load(path))
    torch.save(average.state_dict(), path)


main(dict(), "average.pt")
"""
)


@pytest.mark.parametrize(
    ("state", "is_gathered"),
    [
        ('{"model": self.model.state_dict(), "steps": self.steps}', False),
        ("{self.decay: self.model.state_dict()} if self.decay > 0 else {}", False),
        ('{"shadow": self.shadow}', True),
        ("self.__dict__", True),
        ("self.packed()", True),
    ],
)
def test_what_takes_the_state_of_others_is_left(state: str, is_gathered: bool) -> None:
    text = migrated(train=PROGRAM.replace("{state}", state))["train"]
    assert ("state_of(average)" in text) == is_gathered
    assert "    average.load_state_dict(torch.load(path))\n" in text


@pytest.mark.parametrize(("kept", "stays"), [("count", True), ("list(model.parameters())", False)])
def test_numbers_that_are_counted_and_loaded_are_no_tensors(kept: str, stays: bool) -> None:
    """A factory of anything may hand in whatever it hands to other classes."""
    text = migrated(train=HEAD + f"""class Average:
    def __init__(self, model, count=0):
        self.model, self.kept = model, {kept}

    def state_dict(self):
        return dict(model=self.model.state_dict(), kept=self.kept)

    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])
        self.kept = state["kept"]


def make(kind, **options):
    return kind(**options)


def main(net, path):
    model = DDP(net)
    average = Average(model.module)
    make(Average, model=net, count=net)
    torch.save(average.state_dict(), path)
""")["train"]
    assert ("torch.save(average.state_dict(), path)" in text) is stays
