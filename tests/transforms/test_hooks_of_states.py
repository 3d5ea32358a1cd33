"""Hooks on the states of a wrapper of DDP: what they did with ``module.`` in keys has no place any more, and is told."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings

PROGRAM = (
    HEAD
    + """def strip(module, state, prefix, metadata):
    for key in list(state):
        state[key.replace("module.", "", 1)] = state.pop(key)


def main(net):
    {code}
"""
)
NAMES = ("_register_state_dict_hook", "_register_load_state_dict_pre_hook")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("code", "is_told"), [("model = DDP(net); model.{name}(strip)", True), ("net.{name}(strip); model = DDP(net)", False)]
)
def test_hooks_of_a_wrapper_are_told(name: str, code: str, is_told: bool) -> None:
    found = findings(train=PROGRAM.format(code=code.format(name=name)))
    assert any(finding.rule == "FS606" and finding.level == "manual" for finding in found) == is_told
