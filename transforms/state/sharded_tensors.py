"""Where a ``ShardedTensor`` comes from: state that FSDP1 keeps sharded, taken in these files or read from its files."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..migration import Migration
from ..sites import Site
from ..view import FileView
from .contexts import contexts_of
from .readers import readers

_MAKERS = ("sharded_optim_state_dict", "flatten_sharded_optim_state_dict", "load_sharded_optimizer_state_dict")


def functions_around(migration: Migration, site: Site) -> frozenset[ast.AST] | None:
    """The functions that could hand on another tensor than a test for ``ShardedTensor`` expects, and its own.

    None where nothing confines that: the kind of state dict is set for good, or state is taken outside functions.
    """
    making = makers(migration)
    own = _outermost(site.view, site.node)
    if making is None or own is None:
        return None
    return making | {own}


def makers(migration: Migration) -> frozenset[ast.AST] | None:
    """The functions that take or load sharded state; None where nothing confines that."""
    return migration.once("makers of sharded tensors", None, lambda: _makers(migration))


def _makers(migration: Migration) -> frozenset[ast.AST] | None:
    """The functions that take or load state under a context for anything but full state dicts."""
    found: list[ast.AST | None] = []
    every = [site for sites in migration.sites.values() for site in sites]
    if any(site.member in ("set_state_dict_type", "get_state_dict_type") for site in every):
        return None
    found.extend(_outermost(site.view, site.node) for site in every if site.member in _MAKERS and site.role != "import")
    for view, node in _sharded_places(migration):
        found.append(_outermost(view, node))
    known = [function for function in found if function is not None]
    return frozenset(known) if len(known) == len(found) else None


def _sharded_places(migration: Migration) -> Iterator[tuple[FileView, ast.AST]]:
    for view, node in readers(migration):
        for context in contexts_of(migration, view, node):
            if context.kind != "full":
                yield view, node
                if context.call is not None:
                    yield context.view, context.call


def _outermost(view: FileView, node: ast.AST) -> ast.AST | None:
    """The function around a place that lies in no other one."""
    functions = [a for a in view.ancestors(node) if isinstance(a, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return functions[-1] if functions else None
