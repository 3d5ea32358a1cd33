"""The shape that most fallbacks have: a helper in the place of a method, a function or a class, with the same arguments."""

from __future__ import annotations

import ast
from collections.abc import Callable

import libcst as cst

from ..queries.file import File
from .changes import Change, replace
from .templates import call_of, expression


def call_instead(file: File, call: ast.Call, function: str) -> Change:
    """``old(arguments)`` as ``function(arguments)``."""

    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call)
        return node.with_changes(func=cst.parse_expression(function))

    return replace(file, call, build)


def method_as_function(file: File, call: ast.Call, function: str) -> Change:
    """``receiver.method(arguments)`` as ``function(receiver, arguments)``."""

    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute)
        return call_of(function, node.func.value, node)

    return replace(file, call, build)


def as_method(file: File, node: ast.expr, helper: str, function: str) -> Change:
    """``receiver.method``, or ``getattr(receiver, "method")``, that is not called at once, as a function made by the helper."""

    def build(old: cst.CSTNode) -> cst.CSTNode:
        if isinstance(old, cst.Call):
            thing, name = old.args[0].value, cst.ensure_type(old.args[1].value, cst.SimpleString)
        else:
            attribute = cst.ensure_type(old, cst.Attribute)
            thing, name = attribute.value, cst.SimpleString(f'"{attribute.attr.value}"')
        new = expression("{helper}({thing}, {name}, {function})", helper=helper, thing=thing, name=name, function=function)
        return new.with_changes(lpar=old.lpar, rpar=old.rpar)  # type: ignore[attr-defined]

    return replace(file, node, build)


def wrapper_method(file: File, call: ast.Call, helper: str, function: str) -> Change:
    """``getattr(model, "no_sync", default)`` as ``wrapper_method(model, "no_sync", no_gradient_sync, default)``."""

    def build(old: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(old, cst.Call)
        replacing = cst.Arg(expression(function), comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
        model, name, *default = old.args
        if not default:
            name, replacing = name.with_changes(comma=replacing.comma), replacing.with_changes(comma=name.comma)
        return old.with_changes(func=expression(helper), args=[model, name, replacing, *default])

    return replace(file, call, build)


def is_looked_at(file: File, node: ast.AST) -> bool:
    """Whether a method is only compared, or an attribute of it is read."""
    return isinstance(file.parents[node], (ast.Compare, ast.Attribute))


def name_instead(file: File, node: ast.expr, name: str) -> Change:
    """An expression as a name; its parentheses stay."""

    def build(old: cst.CSTNode) -> cst.CSTNode:
        new = cst.parse_expression(name)
        return new.with_changes(lpar=old.lpar, rpar=old.rpar)  # type: ignore[attr-defined]

    return replace(file, node, build)


def function_instead(file: File, node: ast.AST, call: ast.Call | None, function: str) -> Change:
    """A function or class, called or handed on, as another one with the same parameters."""
    if call is not None:
        return call_instead(file, call, function)
    assert isinstance(node, ast.expr)
    return name_instead(file, node, function)


def method_instead(file: File, node: ast.AST, call: ast.Call | None, function: str, helper: Callable[[], str]) -> Change | None:
    """A method, called or handed on, as a function of the object; None where it is only looked at.

    ``helper`` spells the function that makes a method of a function.
    """
    if call is not None:
        return method_as_function(file, call, function)
    if is_looked_at(file, node):
        return None
    assert isinstance(node, ast.Attribute)
    return as_method(file, node, helper(), function)


def around(file: File, node: ast.expr, template: str) -> Change:
    """An expression, as the other changes leave it, inside of another one, where ``{it}`` stands in the template."""
    return replace(file, node, lambda old: expression(template, it=old), late=True)  # type: ignore[arg-type]


def attribute_as_call(file: File, node: ast.Attribute, template: str) -> Change:
    """``receiver.attribute`` as an expression with ``{receiver}`` in it."""

    def build(old: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(old, cst.Attribute)
        new = expression(template, receiver=old.value)
        return new.with_changes(lpar=[*old.lpar, *new.lpar], rpar=[*new.rpar, *old.rpar])  # type: ignore[attr-defined]

    return replace(file, node, build)
