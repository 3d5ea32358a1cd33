"""Where the program itself asks whether a model is wrapped: what stands where it is not is about a plain model."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ..analysis.symbols import DATA_PARALLEL, DDP, FSDP_MODULE, WRAPPERS
from ..analysis.values import Annotated, Value, Wrapped
from ..view import FileView
from .type_tests import OF_WRAPPED, TypeTest, kept_value, leaving_tests, type_test

Asked = Callable[[ast.expr], bool]
"""Whether a test of this expression is one of the receiver."""


def like(receiver: ast.expr) -> Asked:
    """Tests of an expression that is written like the receiver."""
    written = ast.dump(receiver)
    return lambda tested: ast.dump(tested) == written


def wrapper_kinds(values: Iterable[Value]) -> set[str]:
    """Which wrappers a receiver may have."""
    return {value.kind for value in values if isinstance(value, (Wrapped, Annotated))}


def is_plain(view: FileView, node: ast.AST, asked: Asked, kinds: set[str], once_migrated: bool = True) -> bool:
    """Whether a type test around ``node``, or one that leaves before it, says that the receiver has none of the wrappers.

    The test may stand in the branch itself, be kept under a name before (``is_fsdp = isinstance(model, FSDP)``), or be
    all that a function answers. Once migrated, a test that names FSDPModule is one for every sharded model, and one
    that names DataParallel without it is for that alone: sharded models fail it.
    """
    return _Question(view, node, asked, kinds, once_migrated).answer()


def is_plain_receiver(view: FileView, receiver: ast.expr, kinds: set[str], once_migrated: bool = True) -> bool:
    """Whether tests say so of a receiver, or of all that a name of its own was made of (``model.module if … else model``)."""
    return all(
        is_plain(view, source, like(source), kinds, once_migrated) or _was_made_plain(view, source, kinds, once_migrated)
        for source in _sources(receiver)
    )


def is_not_ddp(view: FileView, node: ast.AST, asked: Asked) -> bool:
    """Whether a type test says that the receiver is no model that stays under DDP."""
    return _OfDdp(view, node, asked, set(), True).answer()


def _was_made_plain(view: FileView, name: ast.expr, kinds: set[str], once_migrated: bool) -> bool:
    kept = kept_value(view, name) if isinstance(name, ast.Name) else None
    return kept is not None and all(
        isinstance(source, (ast.Name, ast.Attribute)) and is_plain(view, source, like(source), kinds, once_migrated)
        for source in _sources(kept)
    )


def _sources(value: ast.expr) -> Iterator[ast.expr]:
    """What a value is taken from, without ``.module``, on either way of a choice."""
    if isinstance(value, ast.IfExp):
        yield from _sources(value.body)
        yield from _sources(value.orelse)
    elif isinstance(value, ast.Attribute) and value.attr == "module":
        yield from _sources(value.value)
    else:
        yield value


@dataclass(frozen=True)
class _Question:
    view: FileView
    node: ast.AST
    asked: Asked
    kinds: set[str]
    once_migrated: bool

    def answer(self) -> bool:
        child = self.node
        for ancestor in self.view.ancestors(self.node):
            if isinstance(ancestor, (ast.If, ast.IfExp)) and child is not ancestor.test:
                holds = child in ancestor.body if isinstance(ancestor, ast.If) else child is ancestor.body
                if self._excludes(ancestor.test, holds):
                    return True
            if any(self._excludes(test, False) for test in leaving_tests(ancestor, child)):
                return True
            if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                return False
            child = ancestor
        return False

    def _excludes(self, test: ast.expr, holds: bool) -> bool:
        """Whether the receiver has no wrapper where ``test`` is true (``holds``) or false."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self._excludes(test.operand, not holds)
        if isinstance(test, ast.Name):
            kept = kept_value(self.view, test)
            return kept is not None and self._excludes(kept, holds)
        if self._fails(test, holds):
            return True
        if isinstance(test, ast.BoolOp):
            decides = isinstance(test.op, ast.And) == holds
            return decides and any(self._excludes(value, holds) for value in test.values)
        return False

    def _fails(self, test: ast.expr, holds: bool) -> bool:
        found = type_test(self.view, test)
        if found is None or not self.asked(found.subject) or self._rebound(test, found.subject):
            return False
        return self._is_excluded(found, holds)

    def _is_excluded(self, found: TypeTest, holds: bool) -> bool:
        """Whether the receiver fails a type test that every wrapped model would pass, or passes one for what stays DDP."""
        if holds:
            return bool(self.view.program.keeps_ddp) and found.names == {DDP}
        if self.once_migrated and FSDP_MODULE in found.names:
            return True
        if self.once_migrated and found.names & DATA_PARALLEL:
            return False
        named = {WRAPPERS[name] for name in found.names & WRAPPERS.keys()}
        return bool(named) and self.kinds <= named

    def _rebound(self, test: ast.expr, subject: ast.expr) -> bool:
        """Whether what was tested gets another value between the test and the node."""
        path = ast.unparse(subject)
        scope = self.view.function(self.node) or self.view.tree
        first, last = self.view.source.span(test)[1], self.view.source.span(self.node)[0]
        return any(
            isinstance(n, (ast.Name, ast.Attribute))
            and isinstance(n.ctx, ast.Store)
            and first <= self.view.source.span(n)[0] < last
            and ast.unparse(n) == path
            for n in ast.walk(scope)
        )


class _OfDdp(_Question):
    """The same question about models that stay under DDP."""

    def _is_excluded(self, found: TypeTest, holds: bool) -> bool:
        return found.names <= OF_WRAPPED - {DDP} and bool(found.names) if holds else DDP in found.names
