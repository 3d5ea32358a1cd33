"""What a rule of migration is. Each lives in a file of its own under ``rules/`` and is found there."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING

from .findings import Level
from .text.patches import Patch

if TYPE_CHECKING:
    import ast

    from .migration import Migration
    from .sites import Site
    from .view import FileView


@dataclass(frozen=True)
class Example:
    """Documentation and test in one: ``before`` is migrated and has to give ``after``.

    Where the rule leaves its site alone, ``after`` equals ``before``; ``level`` is the level of the rule's finding.
    """

    before: str
    after: str
    level: Level = Level.SAFE
    note: str = ""


@dataclass
class Outcome:
    """What a rule decides about one site.

    ``holds`` marks a hazard that would be silent if the rest of the group were rewritten: it keeps the whole
    group from being applied. ``level`` is what the rule would give; the engine lowers it where the receiver is
    uncertain, where no corpus pair proves the rule, or where the group is held.
    """

    level: Level
    message: str
    advice: str = ""
    patches: list[Patch] = field(default_factory=list)
    needs: list[Need] = field(default_factory=list)
    holds: bool = False
    within: frozenset[ast.AST] | None = None
    """For a hazard of no known group: the functions in which alone it can come true; None where that is not known."""
    silent: bool = False
    """No finding of its own: the site is part of another one (a call and its plain keywords are one site)."""
    raises: bool = False
    """For what is left to a person: its patches are applied with the rest, so that it raises instead of going wrong."""


@dataclass(frozen=True)
class Need:
    """A name that generated code uses at ``node`` in ``view``; the import is added if it is missing."""

    view: FileView
    symbol: str
    node: ast.AST


@dataclass(frozen=True)
class Rule:
    """One rule: which symbols it answers for, why, and how it decides.

    ``symbols`` are patterns over canonical names (``torch.distributed.fsdp.FullyShardedDataParallel.no_sync``,
    ``…FullyShardedDataParallel(device_id=)``); ``roles`` restricts them to roles of a site. ``check`` decides
    about one site. ``find`` yields sites that no symbol shows (hazards); they come back to ``check``.
    ``proof`` names the corpus cases that prove the rewrite; a rule without any gives ``review`` at best.
    """

    id: str
    title: str
    why: str
    symbols: tuple[str, ...]
    check: Callable[[Site, Migration], Outcome]
    advice: str = ""
    roles: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()
    proof: tuple[str, ...] = ()
    find: Callable[[Migration], Iterable[Site]] | None = None

    @property
    def level(self) -> Level:
        """The best level the rule's examples show."""
        levels = [example.level for example in self.examples] or [Level.MANUAL]
        return min(levels, key=lambda level: level.rank if level is not Level.OK else Level.MANUAL.rank)

    def claims(self, symbol: str, role: str) -> bool:
        """Whether the rule answers for a symbol in a role."""
        if self.roles and role not in self.roles:
            return False
        return any(symbol == p or ("*" in p and fnmatchcase(symbol, p.replace("[", "[[]"))) for p in self.symbols)


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, by id: whatever module of ``rules/`` defines ``RULE``."""
    package = importlib.import_module(f"{__package__}.rules")
    rules: list[Rule] = []
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            rules.append(importlib.import_module(f"{package.__name__}.{module.name}").RULE)
    return tuple(sorted(rules, key=lambda rule: rule.id))


@cache
def rule_for(symbol: str, role: str) -> Rule:
    """The rule that answers for a site.

    An exact symbol beats a pattern, a longer pattern a shorter one, a rule for certain roles one for all.
    """
    claiming = [rule for rule in all_rules() if rule.claims(symbol, role)]

    def rank(rule: Rule) -> tuple[bool, int, bool]:
        matching = [p for p in rule.symbols if p == symbol or fnmatchcase(symbol, p.replace("[", "[[]"))]
        return symbol in matching, max(len(p) for p in matching), bool(rule.roles)

    return max(claiming, key=rank)
