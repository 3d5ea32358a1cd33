"""What no other rule answers for: reported, so that nothing is missed in silence."""

from __future__ import annotations

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule, rule_for
from ..sites import Site


def check(site: Site, migration: Migration) -> Outcome:
    called, bracket, _ = site.symbol.partition("(")
    if bracket and rule_for(called, "call") is RULE:
        return Outcome(Level.MANUAL, "part of its call", silent=True)
    return Outcome(Level.MANUAL, f"no rule migrates this use of {site.member}")


_PRIVATE = """\
from torch.distributed.fsdp._traversal_utils import _get_fsdp_states

states = _get_fsdp_states(module)
"""

RULE = Rule(
    id="FS001",
    title="A use that no other rule knows",
    why=(
        "Every use of FSDP1, DDP and the old checkpoint functions is reported, also one that has no rewrite: private "
        "functions of torch above all, which FSDP2 replaced by others or does without."
    ),
    advice="Look at what it is for: FSDP2 keeps the model itself, so most helpers around the wrapper can go.",
    symbols=("*",),
    check=check,
    examples=(Example(_PRIVATE, _PRIVATE, Level.MANUAL),),
)
