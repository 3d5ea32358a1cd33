"""Branches for versions of torch that are too old for fully_shard: what is migrated never runs them."""

from __future__ import annotations

import ast
import re

OLDEST: tuple[int, int] = (2, 6)
"""The first torch that has ``torch.distributed.fsdp.fully_shard``."""

_PARSERS = frozenset({"parse", "Version", "LooseVersion", "parse_version"})
_NUMBERS = re.compile(r"(\d+)\.(\d+)")
_SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}


def outcome(test: ast.expr) -> bool | None:
    """What a test comes out as on every torch that has fully_shard; None if that depends on more."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = outcome(test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        parts = [outcome(part) for part in test.values]
        deciding = isinstance(test.op, ast.Or)
        if deciding in parts:
            return deciding
        return None if None in parts else not deciding
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, right, operator = test.left, test.comparators[0], type(test.ops[0])
        if _is_installed(right):
            left, right, operator = right, left, _SWAPPED.get(operator, operator)
        compared = _named_version(right) if _is_installed(left) else None
        if compared is not None and compared < OLDEST:
            if operator in (ast.Gt, ast.GtE, ast.NotEq):
                return True
            if operator in (ast.Lt, ast.LtE, ast.Eq):
                return False
    return None


def never_runs(node: ast.If | ast.IfExp, part: ast.AST) -> bool:
    """Whether a statement or value of a conditional is in the branch for torch versions without fully_shard."""
    known = outcome(node.test)
    if known is None or part is node.test:
        return False
    body = node.body if isinstance(node.body, list) else [node.body]
    return (part in body) != known


def _is_installed(node: ast.expr) -> bool:
    """``version.parse(torch.__version__)``, also of a part of the text; as a bare string it compares letters."""
    parsed = _parsed(node)
    return parsed is not None and any(
        isinstance(inner, ast.Attribute) and inner.attr == "__version__" and isinstance(inner.value, ast.Name)
        and inner.value.id == "torch" for inner in ast.walk(parsed)
    )  # fmt: skip


def _named_version(node: ast.expr) -> tuple[int, int] | None:
    parsed = _parsed(node)
    if isinstance(parsed, ast.Constant) and isinstance(parsed.value, str):
        numbers = _NUMBERS.match(parsed.value)
        return (int(numbers.group(1)), int(numbers.group(2))) if numbers else None
    return None


def _parsed(node: ast.expr) -> ast.expr | None:
    """The argument of a call that makes a version of a text."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
        return None
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return node.args[0] if name in _PARSERS else None
