"""Generated code: source text with holes, into which nodes go as they are, with their comments and parentheses."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import TypeVar

import libcst as cst

Node = TypeVar("Node", bound=cst.CSTNode)
_HOLE = re.compile(r"\{(\w+)\}")
_PREFIX = "__hole_"


def expression(text: str, /, **holes: cst.BaseExpression | str) -> cst.BaseExpression:
    """The expression that ``text`` spells, ``{name}`` standing for the nodes (or texts) given.

    A node that would bind less tightly than its place allows gets parentheses, as if it had been written there.
    """
    return _fill(cst.parse_expression(_with_names(text, holes)), holes)


def statements(text: str, /, **holes: cst.BaseExpression | str) -> list[cst.SimpleStatementLine | cst.BaseCompoundStatement]:
    """The statements that ``text`` spells, one a line at no indentation; holes as in ``expression``."""
    module = cst.parse_module(_with_names(text, holes))
    return [_fill(statement, holes) for statement in module.body]


def comment_lines(texts: Sequence[str]) -> list[cst.EmptyLine]:
    """Comments as lines of their own."""
    return [cst.EmptyLine(comment=cst.Comment(text if text.startswith("#") else f"# {text}")) for text in texts]


def argument(value: cst.BaseExpression | str, keyword: str | None = None) -> cst.Arg:
    """An argument as it is written in a call on one line."""
    node = cst.parse_expression(value) if isinstance(value, str) else value
    if keyword is None:
        return cst.Arg(node)
    bare = cst.SimpleWhitespace("")
    return cst.Arg(node, cst.Name(keyword), equal=cst.AssignEqual(whitespace_before=bare, whitespace_after=bare))


def with_first_argument(call: cst.Call, value: cst.BaseExpression) -> cst.Call:
    """The call with one more argument in front of the others, which keep their layout."""
    if not call.args:
        return call.with_changes(args=[cst.Arg(value)])
    first = cst.Arg(value, comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
    return call.with_changes(args=[first, *call.args])


def with_argument(call: cst.Call, added: cst.Arg) -> cst.Call:
    """The call with one more argument behind the others, which keep their layout."""
    if not call.args:
        return call.with_changes(args=[added])
    *others, last = call.args
    if isinstance(last.comma, cst.Comma):  # a trailing comma, with what stands behind it
        return call.with_changes(args=[*others, last.with_changes(comma=_COMMA), added.with_changes(comma=last.comma)])
    return call.with_changes(args=[*others, last.with_changes(comma=_COMMA), added])


_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def call_of(function: str, receiver: cst.BaseExpression, call: cst.Call) -> cst.Call:
    """``receiver.method(arguments)`` as ``function(receiver, arguments)``."""
    return with_first_argument(call.with_changes(func=cst.parse_expression(function)), receiver)


def _with_names(text: str, holes: dict[str, cst.BaseExpression | str]) -> str:
    def fill(match: re.Match[str]) -> str:
        value = holes[match[1]]
        return value if isinstance(value, str) else f"{_PREFIX}{match[1]}"

    return _HOLE.sub(lambda match: fill(match) if match[1] in holes else match[0], text)


def _fill(node: Node, holes: dict[str, cst.BaseExpression | str]) -> Node:
    nodes = {f"{_PREFIX}{name}": value for name, value in holes.items() if not isinstance(value, str)}
    return node.visit(_Filler(nodes)) if nodes else node  # pyright: ignore[reportReturnType]


_LOOSE = (
    cst.BinaryOperation, cst.BooleanOperation, cst.Comparison, cst.UnaryOperation, cst.IfExp, cst.Lambda, cst.Await,
    cst.Yield, cst.NamedExpr, cst.GeneratorExp,
)  # fmt: skip


class _Filler(cst.CSTTransformer):
    """Puts nodes in the place of the names that stand for them."""

    def __init__(self, nodes: dict[str, cst.BaseExpression]) -> None:
        super().__init__()
        self.nodes = nodes

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        node = self.nodes.get(updated_node.value)
        return updated_node if node is None else node.deep_clone()

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.Assign:
        return updated_node.with_changes(value=_over_lines_in_parentheses(updated_node.value))

    def leave_Return(self, original_node: cst.Return, updated_node: cst.Return) -> cst.Return:
        value = updated_node.value
        return updated_node if value is None else updated_node.with_changes(value=_over_lines_in_parentheses(value))

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:
        return updated_node.with_changes(value=_tight(updated_node.value))

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        return updated_node.with_changes(func=_tight(updated_node.func))

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> cst.Subscript:
        return updated_node.with_changes(value=_tight(updated_node.value))

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> cst.IfExp:
        parts = {name: _loose_in_parentheses(getattr(updated_node, name)) for name in ("body", "test", "orelse")}
        return updated_node.with_changes(**parts)

    def leave_UnaryOperation(self, original_node: cst.UnaryOperation, updated_node: cst.UnaryOperation) -> cst.UnaryOperation:
        return updated_node.with_changes(expression=_tight(updated_node.expression))

    def leave_Comparison(self, original_node: cst.Comparison, updated_node: cst.Comparison) -> cst.Comparison:
        return updated_node.with_changes(left=_loose_in_parentheses(updated_node.left))

    def leave_BooleanOperation(
        self, original_node: cst.BooleanOperation, updated_node: cst.BooleanOperation
    ) -> cst.BooleanOperation:
        parts = {name: _loose_in_parentheses(getattr(updated_node, name)) for name in ("left", "right")}
        return updated_node.with_changes(**parts)


def _tight(node: cst.BaseExpression) -> cst.BaseExpression:
    """In parentheses if it binds less tightly than an attribute access."""
    return in_parentheses(node) if isinstance(node, _LOOSE) else node


def _loose_in_parentheses(node: cst.BaseExpression) -> cst.BaseExpression:
    loose = isinstance(node, (cst.IfExp, cst.Lambda, cst.NamedExpr, cst.BooleanOperation, cst.Yield))
    return in_parentheses(node) if loose else node


def _over_lines_in_parentheses(node: cst.BaseExpression) -> cst.BaseExpression:
    """In parentheses if it is broken over lines where only those of a call that is gone allowed it."""
    try:
        ast.parse(cst.Module([]).code_for_node(node))
    except SyntaxError:
        return in_parentheses(node)
    return node


def in_parentheses(node: cst.BaseExpression) -> cst.BaseExpression:
    """The expression in parentheses, unless it has some."""
    if getattr(node, "lpar", ()):
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
