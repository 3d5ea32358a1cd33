"""Branches that only models without a wrapper came to: the ``else`` of ``if hasattr(model, "module")``.

Sharded models come there too where the test is left as it is, since it answers *no* for them.
"""

from __future__ import annotations

import ast
import itertools

from ..facts.symbols import DDP
from .assignments import assigned_values
from .file import File
from .known_conditions import tests_in_front

_ASKING = frozenset({"getattr", "hasattr", "isinstance", "type"})
_NOT = (ast.NotEq, ast.IsNot, ast.NotIn)


def is_in_plain_branch(file: File, node: ast.expr, surely: bool = False) -> bool:
    """Whether a model that is read here was in no wrapper of DDP, by the tests on the way here.

    ``surely``: by what they ask of the model, and not by what a flag may mean.
    """
    wanted = ast.dump(node)
    if not surely and _is_beside_module(file, node, wanted):
        return True
    for test, part in tests_in_front(file, node):
        if _denies_wrapper(file, part, wanted) and not _is_assigned_between(file, wanted, test, node):
            return True
    return False


def _is_beside_module(file: File, node: ast.expr, wanted: str) -> bool:
    """Whether the other branch reads ``model.module``: it is wrapped there, by a flag or what a function says of it."""
    inside: ast.AST = node
    for around in file.ancestors(node):
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            return False
        if isinstance(around, (ast.If, ast.IfExp)) and inside is not around.test and not _asks_itself(around.test, wanted):
            body = around.body if isinstance(around.body, list) else [around.body]
            if not any(inside is part for part in body):
                read = [n for part in body for n in ast.walk(part) if isinstance(n, ast.Attribute) and n.attr == "module"]
                return any(ast.dump(n.value) == wanted and not _may_fail(file, n, around) for n in read)
        inside = around
    return False


def _may_fail(file: File, node: ast.AST, branch: ast.AST) -> bool:
    """Whether a branch catches that a model has no ``.module``: it says nothing of the model then."""
    between = itertools.takewhile(lambda around: around is not branch, file.ancestors(node))
    return any(isinstance(around, ast.Try) for around in between)


def _asks_itself(test: ast.expr, wanted: str) -> bool:
    """Whether a test asks a model for its class or its attributes, by itself or among other things."""
    calls = (n for n in ast.walk(test) if isinstance(n, ast.Call) and getattr(n.func, "id", "") in _ASKING)
    return any(wanted in ast.dump(call) for call in calls)


def _denies_wrapper(file: File, part: ast.expr, wanted: str) -> bool:
    """Whether a condition says of the model that it is not, or has nothing that, DDP's wrapper."""
    if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not):
        return _holds_for_wrapper(file, part.operand, wanted)
    if not isinstance(part, ast.Compare) or len(part.ops) != 1:
        return False
    asked, (other,) = part.left, part.comparators
    if isinstance(part.ops[0], ast.Is) and isinstance(other, ast.Constant) and other.value is None:
        return _asks_for_wrapper(file, asked, wanted)  # getattr(x, "module", None) is None
    return isinstance(part.ops[0], _NOT) and _is_call(asked, "type", wanted) and _names_ddp(file, other)


def _holds_for_wrapper(file: File, test: ast.expr, wanted: str) -> bool:
    """Whether DDP's wrapper of the model surely passes a test: `hasattr(x, "module") and isinstance(x.module, nn.Module)`."""
    if isinstance(test, ast.BoolOp):
        passed = (_holds_for_wrapper(file, part, wanted) for part in test.values)
        return all(passed) if isinstance(test.op, ast.And) else any(passed)
    return _asks_for_wrapper(file, test, wanted) or _asks_for_its_module(file, test, wanted)


def _asks_for_its_module(file: File, test: ast.expr, wanted: str) -> bool:
    """Whether a test asks of what is in a wrapper whether it is a module, or there."""
    is_class = isinstance(test, ast.Call) and file.external(test.func) == "builtins.isinstance" and len(test.args) == 2
    if isinstance(test, ast.Call) and is_class and file.external(test.args[1]) == "torch.nn.Module":
        inner = test.args[0]
    elif isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot) and ast.unparse(test.comparators[0]) == "None":
        inner = test.left
    else:
        return False
    return isinstance(inner, ast.Attribute) and inner.attr == "module" and ast.dump(inner.value) == wanted


def _asks_for_wrapper(file: File, test: ast.expr, wanted: str) -> bool:
    if not isinstance(test, ast.Call) or len(test.args) < 2:
        return False
    asked = test.args[1]
    if _is_call(test, "isinstance", wanted):
        return _names_ddp(file, asked)
    is_read = _is_call(test, "hasattr", wanted) or _is_call(test, "getattr", wanted)
    return is_read and isinstance(asked, ast.Constant) and asked.value == "module"


def _is_call(node: ast.expr, name: str, wanted: str) -> bool:
    is_named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    return is_named and bool(node.args) and ast.dump(node.args[0]) == wanted  # type: ignore[attr-defined]


def _names_ddp(file: File, classes: ast.expr) -> bool:
    given = [classes, *(assigned_values(file, classes) if isinstance(classes, ast.Name) else ())]
    parts = (n for value in given for n in ast.walk(value) if isinstance(n, (ast.Name, ast.Attribute)))
    return any(file.external(part) == DDP for part in parts)


def _is_assigned_between(file: File, wanted: str, test: ast.expr, node: ast.expr) -> bool:
    return any(test.lineno < statement.lineno < node.lineno for statement, _ in file.assignments.get(wanted, ()))
