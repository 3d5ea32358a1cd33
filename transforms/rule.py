"""What a rule of migration is. Each lives in a file of its own under ``rules/`` and is found there."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING

from .findings import Form, Level

if TYPE_CHECKING:
    from .contract import Breach, Contract
    from .migration import Migration
    from .rewrites.changes import Change
    from .sites import Site


@dataclass(frozen=True)
class Example:
    """Documentation and test in one: ``before`` is migrated and has to give ``after``.

    Where the rule leaves its site alone, ``after`` equals ``before``. ``blind`` examples are migrated without any
    knowledge of values, so that they show the rule's fallback. A rule of the contract rewrites nothing: it speaks of
    ``before``, and ``after`` is what a person writes instead, of which it says nothing.
    """

    before: str
    after: str
    level: Level = Level.SAFE
    blind: bool = False
    note: str = ""


@dataclass
class Outcome:
    """What a rule answers at one site.

    ``form`` is left open by most rules: changes are an idiom or a fallback by what gave them, none are a note.
    """

    message: str
    changes: list[Change] = field(default_factory=list)
    level: Level = Level.SAFE
    form: Form | None = None
    advice: str = ""
    observed: bool = False
    """Whether it rests on what a run alone has shown."""


Answer = Callable[["Site", "Migration"], "Outcome | None"]
"""None where a site is none of the rule's business."""


def _no_answer(site: Site, migration: Migration) -> None:
    """Of a rule that answers for no site."""


@dataclass(frozen=True)
class Rule:
    """One rule: which sites it answers for, why, and how.

    ``symbols`` are patterns over canonical names, ``roles`` restricts them to roles of a site. ``idiom`` gives None
    where facts are not certain; ``fallback`` always answers. ``proof`` names the corpus cases that prove the rewrites;
    a rule without any gives ``review`` at best.
    """

    id: str
    title: str
    why: str
    symbols: tuple[str, ...] = ()
    fallback: Answer = _no_answer
    idiom: Callable[[Site, Migration], Outcome | None] | None = None
    roles: tuple[str, ...] = ()
    advice: str = ""
    sources: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()
    proof: tuple[str, ...] = ()

    def answers_for(self, symbol: str, role: str) -> bool:
        """Whether a site of this symbol and role is this rule's."""
        return (not self.roles or role in self.roles) and any(fnmatchcase(symbol, pattern) for pattern in self.symbols)


@dataclass(frozen=True, kw_only=True)
class ContractRule(Rule):
    """A rule of the FSDP2 contract: what holds for any code with ``fully_shard``, whoever wrote it. It only speaks."""

    breaches: Callable[[Contract], Iterator[Breach]]


@cache
def all_rules() -> tuple[Rule, ...]:
    """The rules of all files under ``rules/``, by id."""
    package = importlib.import_module(".rules", __package__)
    modules = (importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__))
    rules = [module.RULE for module in modules if hasattr(module, "RULE")]
    return tuple(sorted(rules, key=lambda rule: rule.id))


@cache
def contract_rules() -> tuple[ContractRule, ...]:
    """The rules of the FSDP2 contract, by id."""
    return tuple(rule for rule in all_rules() if isinstance(rule, ContractRule))


@cache
def rule_for(symbol: str, role: str) -> Rule | None:
    """The rule with the most specific pattern for a symbol in a role (the longest one; the first id among equals)."""
    best: tuple[int, Rule] | None = None
    for rule in all_rules():
        for pattern in rule.symbols:
            if (not rule.roles or role in rule.roles) and fnmatchcase(symbol, pattern):
                length = len(pattern.rstrip("*")) + (1 if rule.roles else 0)
                if best is None or length > best[0]:
                    best = (length, rule)
    return best[1] if best else None
