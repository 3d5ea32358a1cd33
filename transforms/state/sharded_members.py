"""Where ``ShardedTensor`` is asked for by names: members that only it has, and the name of its class."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..migration import Migration
from ..sites import Site
from ..view import FileView
from .sharded_tensors import makers

SYMBOL = "torch.distributed._shard.sharded_tensor.ShardedTensor"
_MEMBERS = frozenset({"local_shards", "local_tensor", "sharding_spec"})
_OF_DTENSORS = frozenset({"DTensor", "to_local", "full_tensor"})
_ASKING = frozenset({"builtins.hasattr", "builtins.getattr"})


def asked_by_name(migration: Migration) -> Iterator[Site]:
    """``hasattr(value, "local_shards")``, ``type(value).__name__ == "ShardedTensor"``, and reads that nothing asks before."""
    if makers(migration) == frozenset():
        return
    seen: set[FileView] = set()
    for word in ("local_shards", "local_tensor", "sharding_spec", "ShardedTensor"):
        for view in migration.program.views_with(word):
            if view not in seen:
                seen.add(view)
                yield from _in_file(view, {site.symbol for site in migration.sites.get(view.path, ())})


def _in_file(view: FileView, symbols: set[str]) -> Iterator[Site]:
    for node in (n for n in view.nodes(ast.Constant) if n.value in _MEMBERS or n.value == "ShardedTensor"):
        parent = view.parents[node]
        if _knows_dtensors(view, node):
            continue
        if node.value in _MEMBERS and isinstance(parent, ast.Call) and node in parent.args[1:2]:
            if view.external(parent.func) in _ASKING:
                yield Site(view, node, f"{SYMBOL}.{node.value}", "hazard")
        elif node.value == "ShardedTensor" and any(isinstance(a, ast.Compare) for a in view.ancestors(node)):
            yield Site(view, node, SYMBOL, "hazard")
    if SYMBOL not in symbols:
        for node in view.nodes(ast.Attribute):
            parent = view.parents[node]
            if node.attr == "local_shards" and isinstance(parent, ast.Call) and parent.func is node:
                yield Site(view, node, f"{SYMBOL}.local_shards", "hazard")


def _knows_dtensors(view: FileView, node: ast.AST) -> bool:
    """Whether the code around handles a DTensor as well."""
    scope = view.function(node) or view.tree
    mentions = [node for node in ast.walk(scope) if isinstance(node, (ast.Attribute, ast.Name))]
    return any((node.attr if isinstance(node, ast.Attribute) else node.id) in _OF_DTENSORS for node in mentions)
