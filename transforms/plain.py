"""Where the program itself asks whether a model is wrapped: what stands where it is not is about a plain model."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .analysis.symbols import DATA_PARALLEL, WRAPPERS
from .analysis.values import Annotated, Value, Wrapped
from .view import FileView

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

    The test may stand in the branch itself or be kept under a name before (``is_fsdp = isinstance(model, FSDP)``).
    A test that names DataParallel, too, is for that alone ``once_migrated``, and sharded models fail it.
    """
    return _Question(view, node, asked, kinds, once_migrated).answer()


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
            if self._left_before(ancestor, child):
                return True
            if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                return False
            child = ancestor
        return False

    def _left_before(self, block: ast.AST, child: ast.AST) -> bool:
        """Whether a statement before ``child`` leaves its block for good where the receiver is wrapped."""
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(block, name, None)
            if not isinstance(statements, list) or child not in statements:
                continue
            for earlier in statements[: statements.index(child)]:
                leaves = isinstance(earlier, ast.If) and not earlier.orelse and isinstance(earlier.body[-1], _LEAVING)
                if leaves and self._excludes(earlier.test, False):
                    return True
        return False

    def _excludes(self, test: ast.expr, holds: bool) -> bool:
        """Whether the receiver has no wrapper where ``test`` is true (``holds``) or false."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self._excludes(test.operand, not holds)
        if isinstance(test, ast.BoolOp):
            decides = isinstance(test.op, ast.And) == holds
            return decides and any(self._excludes(value, holds) for value in test.values)
        if isinstance(test, ast.Name):
            kept = self._kept(test)
            return kept is not None and self._excludes(kept, holds)
        if holds or not isinstance(test, ast.Call) or len(test.args) != 2:
            return False
        if self.view.external(test.func) != "builtins.isinstance" or not self.asked(test.args[0]):
            return False
        tested = test.args[1].elts if isinstance(test.args[1], ast.Tuple) else [test.args[1]]
        names = {name for name in map(self.view.external, tested) if name is not None}
        if self.once_migrated and names & DATA_PARALLEL:
            return False
        named = {WRAPPERS[name] for name in names & WRAPPERS.keys()}
        return bool(named) and self.kinds <= named and not self._rebound(test)

    def _kept(self, name: ast.Name) -> ast.expr | None:
        """The one value that a local name ever gets."""
        scope = self.view.function(name)
        if scope is None:
            return None
        stores = [
            n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == name.id and isinstance(n.ctx, ast.Store)
        ]
        if len(stores) != 1 or self.view.function(stores[0]) is not scope:
            return None
        statement = self.view.parents[stores[0]]
        return statement.value if isinstance(statement, ast.Assign) and statement.targets == stores else None

    def _rebound(self, test: ast.Call) -> bool:
        """Whether what was tested gets another value between the test and the node."""
        path = ast.unparse(test.args[0])
        scope = self.view.function(self.node) or self.view.tree
        first, last = self.view.source.span(test)[1], self.view.source.span(self.node)[0]
        return any(
            isinstance(n, (ast.Name, ast.Attribute))
            and isinstance(n.ctx, ast.Store)
            and first <= self.view.source.span(n)[0] < last
            and ast.unparse(n) == path
            for n in ast.walk(scope)
        )


_LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)
