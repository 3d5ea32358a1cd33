"""Code that nothing reaches once models are sharded by fully_shard.

Branches for torch versions that have no fully_shard; functions that are only patched into FSDP1's class or its
private modules, and what only those call. They are left as they are: they go with FSDP1, and say nothing of how a
model trains after that.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.symbols import FSDP1
from ..analysis.trees import walk
from ..analysis.values import ClassValue
from ..analysis.versions import OLDEST
from ..migration import Migration
from ..view import FileView
from .old_torch import OldTorch

_PRIVATE = ("torch.distributed.fsdp._", "torch.distributed.fsdp.fully_sharded_data_parallel")
_SHARED = ("torch.distributed.fsdp._fully_shard", "torch.distributed.fsdp._common_utils")
"""Private modules that fully_shard has a part in."""

_OLD_TORCH = f"that runs only on torch before {OLDEST[0]}.{OLDEST[1]}, which has no fully_shard"

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Bypassed:
    """Answers why a place is not reached any more."""

    def __init__(self, migration: Migration) -> None:
        self.migration = migration
        self.old_torch = OldTorch.of(migration)
        self._suspects = set(_suspects(migration))
        self._reasons: dict[ast.AST, str] = {}

    @staticmethod
    def of(migration: Migration) -> Bypassed:
        """The answers for a migration, computed once."""
        return migration.once("bypassed", None, lambda: Bypassed(migration))

    def reason(self, view: FileView, node: ast.AST) -> str:
        """Why nothing reaches a place; empty if something may."""
        return self._reason_here(view, node) or self._reason_of_definition(view, node)

    def is_for_old_torch(self, view: FileView, node: ast.AST) -> bool:
        """Whether only torch versions without fully_shard reach a place, so that nothing is left to be done there."""
        return self.reason(view, node).endswith(_OLD_TORCH)

    def _reason_here(self, view: FileView, node: ast.AST) -> str:
        """Why a statement or a branch around a place does not count any more."""
        if self.old_torch.is_around(view, node):
            return _OLD_TORCH
        if any(isinstance(ancestor, ast.Assign) and _patches_fsdp1(view, ancestor) for ancestor in view.ancestors(node)):
            return "that patches FSDP1 itself, which fully_shard does without"
        return ""

    def _reason_of_definition(self, view: FileView, node: ast.AST) -> str:
        """Why a function or class around a place is not used."""
        for definition in _definitions_around(view, node):
            if definition.name in self._suspects and _is_called_by_name(view, definition):
                if definition not in self._reasons:
                    self._reasons[definition] = ""  # what calls itself is not reached by that
                    self._reasons[definition] = self._why_unused(view, definition)
                if self._reasons[definition]:
                    return self._reasons[definition]
        return ""

    def _why_unused(self, view: FileView, definition: Definition) -> str:
        """What the only mentions of a function or class are, where none of them can run it."""
        found = ""
        for other, mention in self._mentions(definition.name):
            if definition in _definitions_around(other, mention):
                continue
            reason = self.reason(other, mention)
            if not reason:
                return ""
            if not found or not reason.endswith(_OLD_TORCH):
                found = f"{definition.name} is used by nothing but line {other.line(mention)} of {other.path}: {reason}"
        return found

    def _mentions(self, name: str) -> Iterator[tuple[FileView, ast.AST]]:
        """Every place of the repository where a name is read, as a name, an attribute or a text."""
        for view in self.migration.program.views_with(name):
            for node in view.nodes(ast.Name, ast.Attribute, ast.Constant):
                is_name = isinstance(node, ast.Name) and node.id == name
                is_attribute = isinstance(node, ast.Attribute) and node.attr == name
                if is_name or is_attribute or (isinstance(node, ast.Constant) and node.value == name):
                    yield view, node


def _suspects(migration: Migration) -> Iterator[str]:
    """Names that unused branches and patches mention, and those that functions of these names mention."""
    names: set[str] = set()
    definitions: dict[str, list[ast.AST]] = {}
    for view in migration.views():
        for part in OldTorch.of(migration).parts(view):
            names |= _names_in(part)
        for node in view.nodes(ast.Assign, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
            if not isinstance(node, ast.Assign):
                definitions.setdefault(node.name, []).append(node)
            elif _patches_fsdp1(view, node):
                names |= _names_in(node.value)
    pending = list(names)
    while pending:
        for definition in definitions.get(pending.pop(), ()):
            new = _names_in(definition) - names
            names |= new
            pending.extend(new)
    yield from names & definitions.keys()


def _names_in(node: ast.AST) -> set[str]:
    inner = walk(node)
    names = {n.id for n in inner if isinstance(n, ast.Name)}
    return names | {n.attr for n in inner if isinstance(n, ast.Attribute)}


def changes_the_class(view: FileView, node: ast.AST) -> bool:
    """Whether a place is a member of FSDP1's class that is replaced there: calls of it did what the patch does."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and view.external(node.value) == FSDP1
        and isinstance(view.parents[node], ast.Assign)
    )


def _patches_fsdp1(view: FileView, statement: ast.Assign) -> bool:
    """Whether a statement puts something in the place of a part of FSDP1: of its class or its private modules."""
    owners = [view.external(target.value) for target in statement.targets if isinstance(target, ast.Attribute)]
    return len(owners) == len(statement.targets) and all(owner is not None and _is_fsdp1s(owner) for owner in owners)


def _is_fsdp1s(name: str) -> bool:
    """Whether a class or module of torch serves FSDP1 alone."""
    return name == FSDP1 or (name.startswith(_PRIVATE) and not name.startswith(_SHARED))


def _definitions_around(view: FileView, node: ast.AST) -> list[Definition]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [inner for inner in (node, *view.ancestors(node)) if isinstance(inner, kinds)]


def _is_called_by_name(view: FileView, definition: Definition) -> bool:
    """Whether only mentions of its name can run a definition: what a base class from outside calls, it calls unseen."""
    owner = view.parents.get(definition)
    if not isinstance(owner, ast.ClassDef):
        return True
    flow = view.program.flow
    classes = [value for value in view.values(owner) if isinstance(value, ClassValue)]
    bases = {name for cls in classes for name in flow.external_bases(cls)}
    return bool(classes) and bases <= _BARE_BASES and not definition.name.startswith("__")


_BARE_BASES = frozenset({"builtins.object", "abc.ABC", "typing.Generic", "typing.Protocol"})
