"""Keyword dictionaries: ``FSDP(model, **kwargs)`` is read where the dictionary is written out."""

from __future__ import annotations

import ast

from ..findings import Level
from ..migration import Migration
from ..rule import Outcome
from ..sites import Site
from ..view import FileView
from .constructor import check_keyword, constructor_of


def entries_of(view: FileView, keyword: ast.keyword) -> tuple[dict[str, ast.expr], list[ast.stmt]] | None:
    """Names and values of a spread dictionary, and the statements that made it; None where it cannot be read.

    Read are ``**{…}``, ``**dict(…)``, and a local name that is bound once, filled in the same block, and used
    for nothing but this call.
    """
    direct = _display(view, keyword.value)
    if direct is not None:
        return direct, []
    if not isinstance(keyword.value, ast.Name):
        return None
    return _local_dictionary(view, keyword.value)


def _display(view: FileView, node: ast.expr) -> dict[str, ast.expr] | None:
    if isinstance(node, ast.Dict):
        if all(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in node.keys):
            return {k.value: v for k, v in zip(node.keys, node.values, strict=True) if isinstance(k, ast.Constant)}  # pyright: ignore[reportReturnType]
    elif isinstance(node, ast.Call) and view.external(node.func) == "builtins.dict" and not node.args:
        if all(k.arg is not None for k in node.keywords):
            return {k.arg: k.value for k in node.keywords if k.arg is not None}
    return None


def _local_dictionary(view: FileView, use: ast.Name) -> tuple[dict[str, ast.expr], list[ast.stmt]] | None:
    scope = view.function(use) or view.tree
    mentions = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == use.id and n is not use]
    entries: dict[str, ast.expr] | None = None
    statements: list[ast.stmt] = []
    block: list[ast.stmt] = []
    for mention in sorted(mentions, key=lambda n: n.lineno):
        statement = view.statement(mention)
        if view.function(mention) is not view.function(use) or not view.stands_alone(statement):
            return None
        if isinstance(statement, ast.Assign) and statement.targets == [mention] and entries is None:
            entries = _display(view, statement.value)
            block, _ = view.block_of(statement)
        elif entries is not None and statement in block and (item := _item(statement, mention)) is not None:
            entries[item[0]] = item[1]
        else:
            return None
        if entries is None:
            return None
        statements.append(statement)
    if entries is None or not any(view.statement(use) in ast.walk(s) for s in block):
        return None
    return entries, statements


def _item(statement: ast.stmt, mention: ast.Name) -> tuple[str, ast.expr] | None:
    """``kwargs["name"] = value``."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    if isinstance(target, ast.Subscript) and target.value is mention and isinstance(target.slice, ast.Constant):
        return (target.slice.value, statement.value) if isinstance(target.slice.value, str) else None
    return None


def check_spread(site: Site, migration: Migration) -> Outcome:
    """A dictionary that could be read is part of the wrap; any other holds the wrap back."""
    assert site.call is not None and site.keyword is not None
    if site.keyword.arg is not None:
        return check_keyword(site, migration)
    constructor = constructor_of(migration, site.view, site.call, site.group)
    text = site.view.text(site.keyword.value)
    if site.keyword in constructor.spread:
        return Outcome(
            Level.MANUAL,
            f"what **{text} holds is not written out where the tool can read it",
            "Give the arguments by name: sharding_strategy, mixed_precision and auto_wrap_policy decide how the model trains.",
            holds=True,
        )
    worst = [constructor.outcomes[name] for name in constructor.from_dictionaries]
    manual = next((outcome for outcome in worst if outcome.level is Level.MANUAL), None)
    if manual is not None:
        return manual
    notes = [outcome.message for outcome in worst if outcome.level is Level.REVIEW]
    return Outcome(Level.REVIEW, "; ".join([f"the arguments in **{text} go into the fully_shard calls", *notes]))
