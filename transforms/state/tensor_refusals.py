"""Where code for ``ShardedTensor`` alone refuses a ``DTensor``: it raises instead of passing it on as a whole tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..text.patches import Patch
from ..view import FileView

ERROR = 'NotImplementedError("sharded state of FSDP2 (DTensors) is not handled here")'
_WHY = "a DTensor would pass by in silence"
_EVALUATED_AT_ONCE = (ast.IfExp, ast.Call, ast.keyword, ast.Tuple, ast.List, ast.Dict)
_CATCHING = frozenset({"Exception", "BaseException", "RuntimeError", "NotImplementedError"})


def refusal(view: FileView, test: ast.Call, dtensor: str) -> Patch | None:
    """An error for a ``DTensor`` at a test for ``ShardedTensor``; None where there is no place for it, or it is caught."""
    statement = view.statement(test)
    if not _may_be_read_again(test.args[0]) or not view.stands_alone(statement) or _is_caught(view, statement):
        return None
    subject, indent = view.text(test.args[0]), view.indent(statement)
    question, error = f"isinstance({subject}, {dtensor}):\n", f"{indent}    raise {ERROR}\n"
    if isinstance(statement, ast.If) and _holds_in_body(view, statement, test):
        if not view.stands_alone(statement.body[-1]):
            return None
        return view.insert_after(statement.body[-1], (f"{indent}elif ", question, error), _WHY)
    if not _is_always_asked(view, statement, test):
        return None
    branch = "elif" if view.text(statement).startswith("elif") else "if"
    return view.insert_before(statement, (f"{indent}{branch} ", question, error), _WHY)


def _may_be_read_again(subject: ast.expr) -> bool:
    """Whether a value can be asked for once more: a name, or attributes and fixed elements of one."""
    return all(
        isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.expr_context)) for node in ast.walk(subject)
    )


def _holds_in_body(view: FileView, branch: ast.If, test: ast.Call) -> bool:
    """Whether the body of a branch is for values of which the test holds; beside other conditions a name alone is asked."""
    if branch.test is test:
        return True
    together = branch.test
    return isinstance(together, ast.BoolOp) and isinstance(together.op, ast.And) and test in together.values and _is_name(test)


def _is_always_asked(view: FileView, statement: ast.stmt, test: ast.Call) -> bool:
    """Whether a value is there in front of a statement: ``if not isinstance(…)``, or a choice within a simple statement."""
    if isinstance(statement, ast.If):
        inverted = statement.test
        return isinstance(inverted, ast.UnaryOp) and isinstance(inverted.op, ast.Not) and inverted.operand is test
    choice = view.parents[test]
    if not isinstance(choice, ast.IfExp) or choice.test is not test or not _is_name(test):
        return False
    plain = all(isinstance(node, _EVALUATED_AT_ONCE) for node in _up_to(view, test))
    return isinstance(statement, (ast.Return, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)) and plain


def _up_to(view: FileView, node: ast.AST) -> Iterator[ast.AST]:
    """What stands around a node within its statement."""
    for ancestor in view.ancestors(node):
        if isinstance(ancestor, ast.stmt):
            return
        yield ancestor


def _is_name(test: ast.Call) -> bool:
    return isinstance(test.args[0], ast.Name)


def _is_caught(view: FileView, statement: ast.stmt) -> bool:
    """Whether the function itself would catch the error and go on."""
    child: ast.AST = statement
    for ancestor in view.ancestors(statement):
        if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return False
        if isinstance(ancestor, ast.Try) and child in ancestor.body and any(map(_goes_on, ancestor.handlers)):
            return True
        if isinstance(ancestor, ast.With) and any(_suppresses(view, item.context_expr) for item in ancestor.items):
            return True
        child = ancestor
    return False


def _goes_on(handler: ast.ExceptHandler) -> bool:
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)} if handler.type else _CATCHING
    return bool(names & _CATCHING) and not isinstance(handler.body[-1], ast.Raise)


def _suppresses(view: FileView, context: ast.expr) -> bool:
    return isinstance(context, ast.Call) and view.external(context.func) == "contextlib.suppress"


def puts_together(view: FileView, test: ast.Call) -> bool:
    """Whether the branch of a test makes up a ShardedTensor from its parts: it sets these and reads none."""
    branch = view.parents[test]
    if not isinstance(branch, ast.If) or branch.test is not test:
        return False
    subject = ast.dump(test.args[0])
    members = [
        node for statement in branch.body for node in ast.walk(statement)
        if isinstance(node, ast.Attribute) and ast.dump(node.value) == subject
    ]  # fmt: skip
    stored = {node.attr for node in members if isinstance(node.ctx, ast.Store)}
    return {"_local_shards", "_metadata"} <= stored and all(isinstance(node.ctx, ast.Store) for node in members)
