"""What the names of a file stand for as its text says it: constants, functions and imports, without any analysis."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ..text.trees import walk

Binding = tuple[ast.AST, ast.AST | None]
"""A node that binds a name, and what it binds: an expression, a function or an import; None for all else."""

_MOST = 4
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(frozen=True)
class Meaning:
    """The definition behind a name, with the names of the file that it stands in."""

    node: ast.expr | ast.FunctionDef
    names: Names
    chosen: bool = False
    """Whether the name has other definitions, which are not reached."""


@dataclass(eq=False)
class Names:
    """The names of one file. ``imported`` gives those of the file behind a module name, if it is ours."""

    tree: ast.AST
    imported: Callable[[str], Names | None] = field(default=lambda _: None)
    counts: Callable[[Names, ast.AST], bool] | None = None
    """Whether a binding is one that is reached; asked, if it is given, where a name has several."""
    parents: Mapping[ast.AST, ast.AST] = field(default_factory=dict)
    """The node around each, where ``counts`` is given."""
    _asked: set[str] = field(default_factory=set)

    def origins(self, node: ast.expr) -> set[str]:
        """The dotted names that an expression may have where it was imported from; as it is written otherwise."""
        if isinstance(node, ast.Attribute):
            return {f"{owner}.{node.attr}" for owner in self.origins(node.value)}
        if not isinstance(node, ast.Name):
            return set()
        bindings = [binding for binding in self._bindings.get(node.id, []) if not _is_none(binding[1])]
        aliases = [(place, what) for place, what in bindings if isinstance(what, ast.alias)]
        if len(aliases) != len(bindings):
            return set()
        return {_origin(place, what) for place, what in aliases} or {node.id}

    def meaning(self, node: ast.expr) -> Meaning | None:
        """The one definition behind a name."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            modules = self._bindings.get(node.value.id, [])
            if len(modules) == 1 and isinstance(modules[0][1], ast.alias):
                other = self.imported(_origin(modules[0][0], modules[0][1]))
                return other.definition(node.attr) if other is not None else None
        return self.definition(node.id) if isinstance(node, ast.Name) else None

    def definition(self, name: str) -> Meaning | None:
        """The one definition of a name of this file; of several that say the same, the first."""
        every = self._bindings.get(name, [])
        bindings = self._reached(name, every) if 1 < len(every) <= _MOST else every
        if len(bindings) != 1 and len({ast.dump(what) if what is not None else None for _, what in bindings}) != 1:
            return None
        place, what = bindings[0]
        if isinstance(what, ast.alias):
            other = self.imported(_module(place)) if isinstance(place, ast.ImportFrom) else None
            return other.definition(what.name) if other is not None and other is not self else None
        if not isinstance(what, (ast.expr, ast.FunctionDef)):
            return None
        return Meaning(what, self, len(bindings) < len(every))

    def _reached(self, name: str, bindings: list[Binding]) -> list[Binding]:
        """Of the definitions of one global name, those that are reached."""
        counts = self.counts
        if counts is None or name in self._asked or not all(self._is_global(place) for place, _ in bindings):
            return bindings
        self._asked.add(name)
        reached = [binding for binding in bindings if counts(self, binding[0])]
        self._asked.discard(name)
        return reached

    def _is_global(self, node: ast.AST) -> bool:
        while (parent := self.parents.get(node)) is not None:
            if isinstance(parent, _SCOPES):
                return False
            node = parent
        return True

    @cached_property
    def _bindings(self) -> dict[str, list[Binding]]:
        found: dict[str, list[Binding]] = {}
        known: set[ast.AST] = set()
        for node in walk(self.tree):
            for target, what in _bound(node):
                known.add(target)
                name = target if isinstance(target, ast.Name) else None
                found.setdefault(name.id if name is not None else _name(target), []).append((node, what))
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and node not in known:
                found.setdefault(node.id, []).append((node, None))
        return found


def _bound(node: ast.AST) -> list[tuple[ast.AST, ast.AST | None]]:
    """What a node itself binds: the place that holds the name, and what it becomes."""
    match node:
        case ast.Assign(targets=[ast.Name() as target], value=value) | ast.AnnAssign(target=ast.Name() as target, value=value):
            return [(target, value)]
        case ast.Assign(targets=[ast.Tuple(elts=elements) | ast.List(elts=elements)], value=value):
            if all(isinstance(element, ast.Name) for element in elements):
                return [
                    (element, ast.Subscript(value, ast.Constant(index), ast.Load())) for index, element in enumerate(elements)
                ]
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return [(alias, alias) for alias in aliases if alias.name != "*"]
        case ast.FunctionDef():
            return [(node, node)]
        case ast.AsyncFunctionDef() | ast.ClassDef() | ast.arg() | ast.ExceptHandler(name=str()):
            return [(node, None)]
        case ast.MatchAs(name=str()) | ast.MatchStar(name=str()):
            return [(node, None)]
        case _:
            pass
    return []


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.alias):
        return node.asname or node.name.partition(".")[0]
    return node.arg if isinstance(node, ast.arg) else getattr(node, "name", "")


def _is_none(what: ast.AST | None) -> bool:
    """``torch = None``, where an import failed."""
    return isinstance(what, ast.Constant) and what.value is None


def _origin(place: ast.AST, alias: ast.alias) -> str:
    if isinstance(place, ast.ImportFrom):
        module = _module(place)
        return f"{module}{alias.name}" if module.endswith(".") else f"{module}.{alias.name}"
    return alias.name if alias.asname else alias.name.partition(".")[0]


def _module(statement: ast.ImportFrom) -> str:
    return "." * statement.level + (statement.module or "")
