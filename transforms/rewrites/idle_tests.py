"""Tests whose branches do the same."""

from __future__ import annotations

import ast

import libcst as cst

_ASKING = frozenset({"hasattr", "isinstance", "callable", "len", "bool"})


def only_looks(test: ast.expr) -> bool:
    """Whether nothing but looking happens while a test is made."""
    calls = (n for n in ast.walk(test) if isinstance(n, (ast.Call, ast.NamedExpr, ast.Await, ast.Subscript)))
    return all(isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in _ASKING for n in calls)


def asks_only(test: cst.BaseExpression) -> bool:
    """The same of a test in the new code."""
    return only_looks(ast.parse(cst.Module([]).code_for_node(test).strip(), mode="eval").body)


def does_the_same(test: cst.If) -> bool:
    """Whether the two branches of an ``if`` are the same statements, but for comments and layout."""
    if not isinstance(test.orelse, cst.Else):
        return False
    blocks = (test.body, test.orelse.body)
    texts = [_statements(block) for block in blocks if isinstance(block, cst.IndentedBlock)]
    return len(texts) == len(blocks) and texts[0] == texts[1]


def gives_the_same(original: cst.IfExp, new: cst.IfExp) -> bool:
    """Whether the two values of a conditional expression have come to be the same: ``model if parallel else model``."""
    if new.body is original.body and new.orelse is original.orelse:
        return False
    before, after = ([_dump(value) for value in (choice.body, choice.orelse)] for choice in (original, new))
    return after[0] == after[1] and before[0] != before[1] and asks_only(new.test)


def _dump(value: cst.BaseExpression) -> str:
    return ast.dump(ast.parse(f"({cst.Module([]).code_for_node(value)})", mode="eval"))


def repeats(test: cst.If, before: cst.CSTNode) -> bool:
    """Whether all that is behind an ``if`` without comments is a name's value that the statement in front has given it."""
    if test.orelse is not None or not isinstance(before, cst.SimpleStatementLine) or "#" in cst.Module([]).code_for_node(test):
        return False
    first, second = (ast.parse(cst.Module([]).code_for_node(node).strip()).body[0] for node in (before, test))
    assigned = second.body if isinstance(second, ast.If) else []
    if len(assigned) != 1 or not isinstance(first, ast.Assign) or ast.dump(assigned[0]) != ast.dump(first):
        return False
    return isinstance(first.value, ast.Name) and all(isinstance(target, ast.Name) for target in first.targets)


def _statements(block: cst.IndentedBlock) -> str:
    return ast.unparse(ast.parse("".join(cst.Module([]).code_for_node(statement) for statement in block.body)))
