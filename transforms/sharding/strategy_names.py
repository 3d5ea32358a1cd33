"""Mentions of ShardingStrategy outside of wraps: strategies are named by strings."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.values import External, Opaque
from ..findings import Level
from ..migration import Migration
from ..rule import Outcome
from ..sites import Site
from ..text.spelling import quoted
from ..view import FileView
from .constructor import is_left_out, wrapping_calls
from .outside import for_others, uses_fsdp1
from .strategy import MEMBERS, STRATEGY, member


def names_of_chosen(migration: Migration) -> Iterator[Site]:
    """Mentions that no symbol shows: ``strategy.name`` of a variable with several members, and ``case`` patterns."""
    for view in migration.views():
        for pattern in view.nodes(ast.MatchValue):
            value = pattern.value
            if isinstance(value, ast.Attribute) and value.attr in MEMBERS:
                if view.text(value.value).endswith("ShardingStrategy"):
                    group = migration.groups.of_strategies()
                    yield Site(view, value, f"{STRATEGY}.{value.attr}", "hazard", group)
        for node in view.nodes(ast.Attribute):
            if node.attr not in ("name", "value"):
                continue
            held = [v.name for v in view.values(node.value) if isinstance(v, External) and member(v) is not None]
            if len(held) > 1:
                group = migration.groups.of_strategies()
                yield Site(view, node, f"{held[0]}.{node.attr}", "hazard", group, tuple(view.values(node.value)))


def check_mention(site: Site, migration: Migration) -> Outcome:
    """A member becomes its name, the type a string, a look-up by name the name that was looked up."""
    outcome = _check_mention(site, migration)
    if outcome.patches and not wrapping_calls(migration):
        outcome.level = Level.REVIEW
        outcome.message += (
            "; no wrap is seen that takes it: code elsewhere that compares it with ShardingStrategy or hands it to FSDP1 "
            "has to change with it, and a wrong name is not noticed where a configuration is read"
        )
    return outcome


def _check_mention(site: Site, migration: Migration) -> Outcome:
    view, node = site.view, site.node
    if not uses_fsdp1(migration):
        return for_others("ShardingStrategy", "a setting like fsdp_reshard_after_forward")
    if site.role == "keyword" or site.role == "call":
        return _unnamed(site, "is made from a value")
    tail = site.symbol[len(STRATEGY) + 1 :].split(".") if site.symbol != STRATEGY else []
    if any(isinstance(ancestor, ast.JoinedStr) for ancestor in view.ancestors(node)):
        return Outcome(Level.MANUAL, "a strategy is printed here", "It is a string now: print the name.")
    if tail and tail[0] in MEMBERS and len(tail) == 1:
        return _member(site, migration, tail[0])
    if tail and tail[0] in MEMBERS and tail[1:] == ["name"] and isinstance(node, ast.Attribute):
        return _name_of(site, node.value, tail[0])
    if site.symbol != STRATEGY:
        return _unnamed(site, "is asked for more than a member's name")
    if site.role == "annotation":
        return Outcome(Level.SAFE, "strategies are strings now", patches=[view.replace(node, "str", _NAMED)])
    parent = view.parents[node]
    if isinstance(parent, ast.Subscript) and parent.value is node:
        return _by_name(view, parent, parent.slice)
    if (
        isinstance(parent, ast.Call)
        and view.external(parent.func) == "builtins.getattr"
        and len(parent.args) >= 2
    ):
        return _by_name(view, parent, parent.args[1])
    if site.role == "isinstance":
        return Outcome(
            Level.MANUAL,
            "the test asks for ShardingStrategy, and strategies are strings after the migration",
            'Ask for str, or for one of the names: strategy in ("FULL_SHARD", "SHARD_GRAD_OP").',
            holds=True,
        )
    return _unnamed(site, "is used as a type")


_NAMED = "strategies are named by strings"


def _member(site: Site, migration: Migration, name: str) -> Outcome:
    view, node = site.view, site.node
    parent = view.parents[node]
    if isinstance(parent, ast.keyword):
        call = view.parents[parent]
        if call in wrapping_calls(migration):
            return Outcome(Level.SAFE, f"{name} decides how the wrap shards")
        assert isinstance(call, ast.Call)
        if any(isinstance(v, Opaque) for v in view.values(call)):
            return _unnamed(site, "is handed to code outside this repository")
    if is_left_out(site, migration):
        return Outcome(Level.SAFE, f"{name} decides how the wraps shard")
    is_choice = isinstance(parent, ast.IfExp) and isinstance(view.parents[parent], ast.keyword)
    message = f"{name} is one of those that are chosen between" if is_choice else f"the strategy is named by its string, {name}"
    outcome = Outcome(Level.SAFE, message)
    outcome.patches.append(view.replace(node, quoted(view, name), _NAMED))
    if isinstance(parent, ast.Compare) and any(isinstance(o, (ast.Is, ast.IsNot)) for o in parent.ops):
        return _by_equality(site, parent, outcome)
    return outcome


def _by_equality(site: Site, compare: ast.Compare, outcome: Outcome) -> Outcome:
    """Members are compared by identity, strings by equality."""
    if len(compare.ops) != 1:
        return _unnamed(site, "is compared by identity in a chain")
    operator = " == " if isinstance(compare.ops[0], ast.Is) else " != "
    keep = site.view.keep
    outcome.patches.append(
        site.view.replace(compare, (keep(compare.left), operator, keep(compare.comparators[0])), _NAMED)
    )
    return outcome


def _name_of(site: Site, owner: ast.expr, name: str) -> Outcome:
    """``ShardingStrategy.FULL_SHARD.name``, or ``.name`` of a variable: the string already is the name."""
    view = site.view
    written = isinstance(owner, ast.Attribute) and view.external(owner.value) == STRATEGY
    text = (quoted(view, name),) if written else (view.keep(owner),)
    return Outcome(Level.SAFE, "a strategy is its own name", patches=[view.replace(site.node, text, _NAMED)])


def _by_name(view: FileView, look_up: ast.expr, name: ast.expr) -> Outcome:
    return Outcome(
        Level.SAFE,
        "the name itself stands for the strategy",
        patches=[view.replace(look_up, (view.keep(name),), _NAMED)],
    )


def _unnamed(site: Site, what: str) -> Outcome:
    return Outcome(
        Level.MANUAL,
        f"ShardingStrategy {what}, and strategies are strings after the migration",
        'Use the names ("FULL_SHARD", "SHARD_GRAD_OP", …) here as well.',
        holds=True,
    )
