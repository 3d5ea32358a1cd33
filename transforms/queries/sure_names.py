"""What surely can be read at a place: names that have been assigned, attributes that everything that may come there has."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence

from ..flow.library import is_optimizer_class
from ..flow.values import Constant, Instance, Optimizer, Value
from .file import File

_OF_OPTIMIZERS = frozenset({"state", "param_groups", "defaults"})
_WITHOUT_ATTRIBUTES = frozenset({"builtins.object", "abc.ABC", "typing.Protocol", "torch.nn.Module", "torch.nn.modules.Module"})
"""Bases whose objects have none that code would work on."""
_GIVES_PARTS = re.compile(r"\b(setattr|add_module|register_module|__dict__|__setattr__)\b")
_NAMED_STATEMENTS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def surely_there(file: File, place: ast.AST, text: str) -> str:
    """The longest first part of an expression that has all of its attributes: ``optimizer`` of ``optimizer.base_optimizer``.

    An attribute is in doubt where something that may come to the place is seen to lack it.
    """
    nodes = list(ast.walk(file.function(place) or file.tree))
    node: ast.expr = ast.parse(text, mode="eval").body
    found = text
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        base = ast.unparse(node.value)
        if isinstance(node, ast.Attribute):
            same = [n for n in nodes if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript)) and ast.unparse(n) == base]
            values = {value for n in same for value in file.values(n)}
            if any(_lacks(file, value, node.attr, values) for value in values) or _is_set_behind(file, place, ast.unparse(node)):
                found = base
        node = node.value
    return found


def _lacks(file: File, value: Value, name: str, beside: set[Value]) -> bool:
    if isinstance(value, Constant):
        return True
    if isinstance(value, Optimizer):
        is_own = any(isinstance(other, Instance) and other.site == value.site for other in beside)
        return not is_own and value.name.startswith("torch.optim.") and name not in _OF_OPTIMIZERS
    if not isinstance(value, Instance):
        return False
    flow = file.program.flow
    if any(flow.has_member(value.cls, member) for member in (name, "__getattr__", "__getattribute__")):
        return False
    files = {file.program.file(cls.file) for cls in flow.ancestors(value.cls)}
    own = {(cls.file, flow.files[cls.file].classes[cls.index].line) for cls in flow.ancestors(value.cls)}
    stores = [(f, n) for f in files for n in f.nodes(ast.Attribute) if n.attr == name and isinstance(n.ctx, ast.Store)]
    stores = [(f, n) for f, n in stores if not _is_of_another_class(f, n, own)]
    if stores:
        return all(_is_conditional(owner, node) for owner, node in stores)
    bases = flow.external_bases(value.cls)
    if "torch.nn.Module" in bases and any(_GIVES_PARTS.search(f.source.text) for f in files):
        return False
    return all(is_optimizer_class(base) or base in _WITHOUT_ATTRIBUTES for base in bases)


def _is_of_another_class(file: File, store: ast.Attribute, own: Collection[tuple[int, int]]) -> bool:
    """Whether an attribute is set on the ``self`` of a class that is none of these, each given by its file and line."""
    around = file.enclosing_class(store)
    is_self = isinstance(store.value, ast.Name) and store.value.id == "self"
    return is_self and around is not None and (file.index, around.lineno) not in own


def _is_set_behind(file: File, place: ast.AST, path: str) -> bool:
    """Whether nothing but functions that the place itself may call sets an attribute of ``self``."""
    if not re.fullmatch(r"self\.\w+", path):
        return False
    setters = {file.function(n) for n in file.nodes(ast.Attribute) if isinstance(n.ctx, ast.Store) and ast.unparse(n) == path}
    names = {getattr(function, "name", None) for function in setters}
    reached: set[str] = set()
    pending: list[ast.AST] = [place]
    while pending:
        said = {n.attr for n in ast.walk(pending.pop()) if isinstance(n, ast.Attribute)} - reached
        reached |= said
        pending += [f for f in file.nodes(ast.FunctionDef, ast.AsyncFunctionDef) if f.name in said]
    return bool(names) and names <= reached


def _is_conditional(file: File, node: ast.AST) -> bool:
    """Whether something is assigned in one branch alone of the function around it."""
    for around in file.ancestors(node):
        if isinstance(around, ast.If):
            name = ast.unparse(node)
            branches = (around.body, around.orelse)
            return not all(any(ast.unparse(n) == name for s in b for n in ast.walk(s)) for b in branches)
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
    return False


def is_surely_assigned(file: File, place: ast.AST, name: str) -> bool:
    """Whether a name has a value whenever a place is reached, as far as its own function tells."""
    function = file.function(place)
    scope = function or file.tree
    if function is not None and any(isinstance(a, ast.arg) and a.arg == name for a in ast.walk(function.args)):
        return True
    if not any(_stores(node, name) for node in ast.walk(scope)):
        return True  # of a scope further out
    inside: ast.AST = place
    for around in (*file.ancestors(place), None):
        if isinstance(inside, ast.stmt) and inside is not scope:
            block, index = file.block_of(inside)
            if any(assigns(statement, name) for statement in block[:index]):
                return True
        if around is None or around is scope:
            return False
        if isinstance(around, ast.stmt) and _header_assigns(around, name):
            return True
        inside = around
    return False


def assigns(statement: ast.stmt, name: str) -> bool:
    """Whether a name surely has a value behind a statement."""
    if isinstance(statement, _NAMED_STATEMENTS):
        return statement.name == name
    if isinstance(statement, ast.If):
        return all(_block_assigns(block, name) for block in (statement.body, statement.orelse))
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return _header_assigns(statement, name) or _block_assigns(statement.body, name)
    if isinstance(statement, ast.Try):
        blocks = [[*statement.body, *statement.orelse], *(handler.body for handler in statement.handlers)]
        return all(_block_assigns(block, name) for block in blocks) or _block_assigns(statement.finalbody, name)
    if isinstance(statement, (ast.For, ast.AsyncFor, ast.While)):
        return False
    return any(_mentions(node, name) for node in ast.walk(statement))


def _block_assigns(block: Sequence[ast.stmt], name: str) -> bool:
    return any(assigns(s, name) or isinstance(s, _LEAVES) for s in block)


def _header_assigns(statement: ast.stmt, name: str) -> bool:
    """Whether a statement with a block assigns a name in front of it: the variable of a loop."""
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        return any(_stores(node, name) for node in ast.walk(statement.target))
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return any(_stores(node, name) for item in statement.items for node in ast.walk(item))
    return False


def _mentions(node: ast.AST, name: str) -> bool:
    """A name that is read has a value as much as one that is assigned."""
    if isinstance(node, ast.alias):
        return (node.asname or node.name).partition(".")[0] == name
    return isinstance(node, ast.Name) and node.id == name


def _stores(node: ast.AST, name: str) -> bool:
    if isinstance(node, _NAMED_STATEMENTS):
        return node.name == name
    return _mentions(node, name) and isinstance(getattr(node, "ctx", ast.Store()), ast.Store)
