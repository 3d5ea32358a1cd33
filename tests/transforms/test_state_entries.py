"""What is put into state dicts by hand: it is a parameter, or nobody knows what it is."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated


@pytest.mark.parametrize(("entry", "written"), [
    ("self.net.weight", "state_entry(self.net.weight)"), ("3.0", "3.0"),
    ("self.scaler.loss_scale", "state_entry(self.scaler.loss_scale)"),
])  # fmt: skip
def test_what_is_put_into_a_state_dict_need_not_be_a_tensor(entry: str, written: str) -> None:
    """A number has no `detach`."""
    program = HEAD + (
        "class Trainer:\n    def __init__(self, options, scaler):\n"
        "        self.net, self.scaler = DDP(nn.Linear(2, 2), **options), scaler\n\n"
        "    def state_dict(self):\n        state = self.net.state_dict()\n"
        f'        state["entry"] = {entry}\n        return state\n\n\nTrainer(dict(), object()).state_dict()\n'
    )
    assert f'state["entry"] = {written}\n' in migrated(train=program)["train"]


def test_a_parameter_goes_in_whole() -> None:
    program = HEAD + (
        "def save(options):\n    model = DDP(nn.Linear(2, 2), **options)\n    state = model.state_dict()\n"
        "    for name, p in model.named_parameters():\n        state[name] = p\n    return state\n"
    )
    assert "state[name] = state_entry(p)" in migrated(train=program)["train"]
