"""Which wrappers a site is about, as far as it is known."""

from __future__ import annotations

import ast

from ..analysis.symbols import DDP, FSDP1, WRAPPERS
from ..analysis.values import Annotated, Wrapped
from ..sites import Site

_FSDP1_MODULE = "torch.distributed.fsdp."
_BOTH = frozenset({"FSDP1", "DDP"})


def kinds_of(site: Site) -> frozenset[str]:
    """FSDP1, DDP or both."""
    if site.group is not None:
        return frozenset(site.group.kinds)
    if site.role == "isinstance":
        return _kinds_of_test(site)
    if site.role in ("use", "dynamic"):
        wrapped = [value for value in site.values if isinstance(value, (Wrapped, Annotated))]
        if wrapped and len(wrapped) == len(site.values):
            return frozenset(value.kind for value in wrapped)
        if site.symbol.startswith(DDP):
            return _BOTH  # it stands for either where nothing is known of the receiver
    return _kinds_of_symbol(site.symbol)


def _kinds_of_symbol(symbol: str) -> frozenset[str]:
    if symbol.startswith(DDP):
        return frozenset({"DDP"})
    return frozenset({"FSDP1"}) if symbol.startswith((FSDP1, _FSDP1_MODULE)) else _BOTH


def _kinds_of_test(site: Site) -> frozenset[str]:
    """One test for several wrappers is rewritten as a whole."""
    view = site.view
    test = next(node for node in view.ancestors(site.node) if isinstance(node, (ast.stmt, ast.Call, ast.Compare)))
    names = [view.external(node) or "" for node in ast.walk(test) if isinstance(node, (ast.Name, ast.Attribute))]
    return _kinds_of_symbol(site.symbol).union(WRAPPERS[name] for name in names if name in WRAPPERS)
