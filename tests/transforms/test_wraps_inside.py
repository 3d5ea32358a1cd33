"""Wrapped models inside of a module that is in no wrapper: `module.` stands in the middle of the keys of its state."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = (
    HEAD
    + """

class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = DDP(nn.Linear(4, 4))
        self.plain = nn.Linear(4, 4)


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain = nn.Linear(4, 4)


def main(path):
    {made}
    torch.save(holder.state_dict(), path)


main("path")
"""
)


@pytest.mark.parametrize("made", [
    "holder = Outer()",
    "holder = nn.ModuleList([DDP(nn.Linear(4, 4)), nn.Linear(4, 4)])",
    "holder = nn.ModuleDict({'a': DDP(nn.Linear(4, 4))})",
    "holder = nn.ModuleList()\n    for _ in range(2):\n        holder.append(DDP(nn.Linear(4, 4)))",
])  # fmt: skip
def test_keys_of_what_holds_models_in_ddp(made: str) -> None:
    assert "torch.save(model_state(holder), path)" in migrated(train=PROGRAM.format(made=made))["train"]


def test_what_is_itself_inside_of_ddp_has_its_own_keys() -> None:
    text = migrated(train=PROGRAM.format(made="model = DDP(Bare())\n    holder = model.module"))["train"]
    assert "model_state" not in text
