"""Files that hold DDP's prefix only where the old program wrapped its model."""

from __future__ import annotations

import ast

from ..analysis.values import Wrapped
from ..introspection.plain import is_plain_receiver, wrapper_kinds
from ..migration import Migration
from ..sites import Site
from .unwrapped import was_unwrapped


def may_be_prefixed(migration: Migration, site: Site, state: ast.expr) -> bool:
    """Whether a load may have gone into DDP's wrapper, and nothing before it takes the prefix off the keys."""
    node = site.node
    wrapped = [value for value in site.values if isinstance(value, Wrapped)]
    if not wrapped or any(value.kind != "DDP" for value in wrapped) or not isinstance(node, ast.Attribute):
        return False
    if is_plain_receiver(site.view, node.value, wrapper_kinds(site.values), once_migrated=False):
        return False
    if was_unwrapped(migration, site.view, node.value):
        return False
    return not _is_cut_before(site, state)


def _is_cut_before(site: Site, state: ast.expr) -> bool:
    """Whether a state dict, or what its name is given anywhere in the function, speaks of the prefix."""
    view = site.view
    given: list[ast.AST] = [state]
    if isinstance(state, ast.Name):
        scope = view.function(state) or view.tree
        given = [node for node in ast.walk(scope) if isinstance(node, (ast.Assign, ast.For)) and _gives(node, state.id)]
    texts = [view.text(node) for node in given]
    return any('"module' in text or "'module" in text for text in texts)


def _gives(statement: ast.Assign | ast.For, name: str) -> bool:
    """Whether a statement binds a name, or puts something into what it holds."""
    for node in ast.walk(statement):
        stored = node.value if isinstance(node, ast.Subscript) else node
        if isinstance(getattr(node, "ctx", None), ast.Store) and isinstance(stored, ast.Name) and stored.id == name:
            return True
    return False
