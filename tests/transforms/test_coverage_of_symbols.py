"""Every name that the tables of old symbols hold has a rule, called and handed on."""

from __future__ import annotations

import pytest
from to_fsdp2.transforms.facts import symbols
from to_fsdp2.transforms.facts.wrapper_members import MEMBERS
from to_fsdp2.transforms.rule import rule_for

_OF_MODULES = {"torch.nn.Module.state_dict", "torch.nn.Module.load_state_dict"}
OLD = sorted(symbols._OLD_EXACT | {prefix.rstrip("._") + ".anything" for prefix in symbols._OLD_PREFIXES})


@pytest.mark.parametrize("role", ["call", "value"])
@pytest.mark.parametrize("symbol", OLD)
def test_old_symbols_have_a_rule(symbol: str, role: str) -> None:
    assert not symbols.is_old(symbol) or rule_for(symbol, role) is not None


@pytest.mark.parametrize("symbol", [*OLD, *symbols.ALIASES])
def test_other_paths_lead_to_symbols_with_a_rule(symbol: str) -> None:
    name = symbols.canonical(symbol)
    assert not symbols.is_old(name) or rule_for(name, "call") is not None


@pytest.mark.parametrize("symbol", sorted({*MEMBERS.values()} - _OF_MODULES))
def test_members_have_a_rule_however_they_are_reached(symbol: str) -> None:
    assert rule_for(symbol, "call") is not None
    assert rule_for(symbol, "dynamic") is not None


@pytest.mark.parametrize("name", symbols._FSDP2_PUBLIC)
def test_what_is_new_is_not_old(name: str) -> None:
    assert not symbols.is_old(f"torch.distributed.fsdp.{name}")


def test_stars_bring_old_names() -> None:
    for module in ("torch.distributed.fsdp", "torch.nn.parallel.distributed", "torch.distributed.fsdp.wrap"):
        names = symbols.star_names(module)
        assert names and any(symbols.is_old(symbols.canonical(f"{module}.{name}")) for name in names)
    assert symbols.star_names("torch.nn") == ()
