"""Type tests that leave wrappers out, to reach the modules inside: where activation checkpointing picks its modules, say."""

from __future__ import annotations

import ast

from ..analysis.symbols import WRAPPERS
from ..view import FileView


def tested_classes(view: FileView, node: ast.AST) -> ast.expr | None:
    """The second argument of the ``isinstance`` that holds a class, or the tuple of classes that is one elsewhere."""
    child: ast.AST = node
    for ancestor in view.ancestors(node):
        if isinstance(ancestor, ast.Call) and child in ancestor.args[1:2]:
            return child if isinstance(child, ast.expr) else None
        if not isinstance(ancestor, (ast.Tuple, ast.BinOp, ast.List, ast.Set)):
            break
        child = ancestor
    return None


def skips_wrappers(view: FileView, classes: ast.expr) -> bool:
    """``not isinstance(module, FSDP)`` in a lambda, or in what a function answers that picks modules to checkpoint."""
    test = view.parents[classes]
    inverted = view.parents[test]
    if not isinstance(inverted, ast.UnaryOp) or not isinstance(inverted.op, ast.Not):
        return False
    chooser = view.function(test)
    if isinstance(chooser, ast.Lambda):
        return True
    return isinstance(chooser, ast.FunctionDef) and "check" in chooser.name and _decides_answer(view, test)


def refusal(view: FileView, classes: ast.expr) -> ast.If | None:
    """``if isinstance(module, FSDP): return False`` in a function that picks modules to checkpoint."""
    test = view.parents[classes]
    statement, chooser = view.parents[test], view.function(test)
    if not isinstance(statement, ast.If) or statement.test is not test or statement.orelse or len(statement.body) != 1:
        return None
    first = statement.body[0]
    refuses = isinstance(first, ast.Return) and isinstance(first.value, ast.Constant) and first.value.value is False
    if not refuses or not isinstance(chooser, ast.FunctionDef) or not _only_wrappers(view, classes):
        return None
    picks = any(
        keyword.arg == "check_fn" and isinstance(keyword.value, ast.Name) and keyword.value.id == chooser.name
        for call in view.nodes(ast.Call) for keyword in call.keywords
    )  # fmt: skip
    return statement if picks else None


def _only_wrappers(view: FileView, classes: ast.expr) -> bool:
    named = classes.elts if isinstance(classes, (ast.Tuple, ast.List, ast.Set)) else [classes]
    return all(view.external(cls) in WRAPPERS for cls in named)


def _decides_answer(view: FileView, test: ast.AST) -> bool:
    """Whether a function returns a test, or returns at once by it."""
    statement = view.statement(test)
    return isinstance(statement, ast.Return) or (isinstance(statement, ast.If) and isinstance(statement.body[0], ast.Return))
