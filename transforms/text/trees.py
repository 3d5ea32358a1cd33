"""Walks over syntax trees, in the order of ``ast.walk`` and in half its time.

They pass over what nothing asks a walk for: operators, and the contexts of names.
"""

from __future__ import annotations

import ast

_OTHER_FIELDS = frozenset({"ctx", "op", "ops", "id", "attr", "arg", "module", "level", "asname", "kind", "type_ignores"})
"""Fields that never hold a node, or only an operator or context."""
_LEAVES = (ast.Name, ast.Constant, ast.alias, ast.Global, ast.Nonlocal)


class _Fields(dict[type[ast.AST], tuple[str, ...]]):
    """The fields of each type of node that may hold nodes, worked out when the type is first met."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        names = () if issubclass(kind, _LEAVES) else tuple(name for name in kind._fields if name not in _OTHER_FIELDS)
        self[kind] = names
        return names


_FIELDS = _Fields()


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes right below a node, in the order of the text (of a dictionary: its keys, then its values)."""
    found: list[ast.AST] = []
    for name in _FIELDS[type(node)]:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def walk(root: ast.AST) -> list[ast.AST]:
    """A node and all nodes below it, level by level."""
    nodes = [root]
    for node in nodes:
        nodes += children(node)
    return nodes
