"""The device of a model, be it in a wrapper or not: the branch for modules is right for sharded ones as well."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated


@pytest.mark.parametrize(
    ("choice", "stays"),
    [
        ("model.device if isinstance(model, DDP) else next(model.parameters()).device", True),
        ("model.device if isinstance(model, DDP) else next(other.parameters()).device", False),
        ("model.device", False),
    ],
)
def test_a_choice_of_devices(choice: str, stays: bool) -> None:
    code = f"def device_of(model, other):\n    return {choice}\n\n\n"
    code += "def main(net, other):\n    return device_of(DDP(net), other)\n"
    assert (f"return {choice}\n" in migrated(train=HEAD + code)["train"]) == stays
