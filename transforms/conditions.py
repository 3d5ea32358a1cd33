"""Conditions in generated code: what runs only where the model is sharded, and a test turned round."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from .migration import Migration
from .patches import Part
from .rule import Outcome
from .scopes import dotted_path
from .sites import Site
from .view import FileView

FSDP_MODULE = "torch.distributed.fsdp.FSDPModule"
_INVERSE = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Is: "is",
    ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
_OPPOSITE = {
    "==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">", "is": "is not", "is not": "is",
    "in": "not in", "not in": "in",
}  # fmt: skip

_MAIN = "__name__ == '__main__'"


def negated(view: FileView, test: ast.expr) -> tuple[Part, ...]:
    """The opposite of a condition, as people would write it."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return (view.keep(test.operand),)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        operator = _OPPOSITE[_INVERSE[type(test.ops[0])]]
        return (view.keep(test.left), f" {operator} ", view.keep(test.comparators[0]))
    if isinstance(test, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        return ("not ", view.keep(test))
    return ("not (", view.keep(test), ")")


def only_where_sharded(
    site: Site, migration: Migration, outcome: Outcome, statement: Sequence[Part], indent: str
) -> list[Part]:
    """A statement about ``site``'s receiver, inside an ``isinstance`` test where a plain model may come by.

    The parts start behind the indentation and end without a newline.
    """
    if not needs_guard(site, migration):
        return list(statement)
    module = migration.use(outcome, site.view, FSDP_MODULE, site.node)
    assert isinstance(site.node, ast.Attribute)
    return [
        "if isinstance(", site.view.keep(site.node.value), f", {module}):\n{indent}    ", *statement
    ]  # fmt: skip


def needs_guard(site: Site, migration: Migration) -> bool:
    """Whether a path without sharding reaches a use, and no branch around it keeps that path out."""
    if not site.maybe_plain and site.certain:
        return False
    return not _inside_branch_of_wrap(site, migration)


def _inside_branch_of_wrap(site: Site, migration: Migration) -> bool:
    """Whether the use stands under the same condition as the wrap (``if ddp:`` around both)."""
    if site.group is None:
        return False
    here = conditions_of(site.view, site.node)
    there = [conditions_of(wrap.view, wrap.node) - {_MAIN} for wrap in site.group.wraps]
    return any(conditions and conditions <= here for conditions in there)


def conditions_of(view: FileView, node: ast.AST) -> set[str]:
    """What is surely true at a node: the conditions of the branches around it, by the last name of each path."""
    found: set[str] = set()
    child = node
    for ancestor in view.ancestors(node):
        if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            break
        inside = child in ancestor.body if isinstance(ancestor, ast.If) else False
        if isinstance(ancestor, ast.IfExp):
            inside = child is ancestor.body
        if inside and isinstance(ancestor, (ast.If, ast.IfExp)):
            found.update(_conjuncts(ancestor.test))
        child = ancestor
    return found


def _conjuncts(test: ast.expr) -> set[str]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return {name for value in test.values for name in _conjuncts(value)}
    path = dotted_path(test)
    if path is not None:
        return {path.rpartition(".")[2]}
    return {ast.unparse(test)}
