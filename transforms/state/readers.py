"""Which ``state_dict_type`` contexts have readers: calls in these files that take or load state under them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..migration import Migration
from ..sites import Site
from ..view import FileView
from .contexts import contexts_of
from .loads import TO_LOAD
from .reads import OPTIMIZER_READS, hidden_uses, optimizer_calls

_METHODS = frozenset({"state_dict", "load_state_dict", "save_pretrained", *OPTIMIZER_READS, *TO_LOAD})


def has_reader(migration: Migration, context: ast.Call) -> bool:
    """Whether anything in these files takes or loads state under a context.

    Where nothing does, code outside them may: it gets another kind of state dict once the context is gone.
    """
    return context in migration.once("contexts with readers", None, lambda: set(_with_readers(migration)))


def _with_readers(migration: Migration) -> Iterator[ast.Call]:
    for view, node in readers(migration):
        for context in contexts_of(migration, view, node):
            if context.call is not None:
                yield context.call


def readers(migration: Migration) -> Iterator[tuple[FileView, ast.AST]]:
    """Every place that takes or loads the state of a model or optimizer."""
    sites: list[Site] = [site for sites in migration.sites.values() for site in sites]
    for site in (*sites, *hidden_uses(migration)):
        if site.member in _METHODS:
            yield site.view, site.node
    for method in ("state_dict", "load_state_dict"):
        for view, call, _ in optimizer_calls(migration, method):
            yield view, call
