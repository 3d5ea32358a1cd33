"""Classes whose state is that of others: what they say and load goes through the `state_dict` of what they hold."""

from __future__ import annotations

import ast

from ..flow.values import Constant, FunctionValue, Instance, Value
from .file import File
from .program import Program

_ASKING = frozenset({"isinstance", "hasattr", "len", "bool", "type", "super"})


def delegates_state(program: Program, value: Value, method: str) -> bool:
    """Whether an object's own ``state_dict`` or ``load_state_dict`` handles no tensors itself, but numbers and others' states.

    Where it takes the state of something that is sharded is a place of its own.
    """
    if not isinstance(value, Instance):
        return False
    flow = program.flow
    members = [(a, flow.files[a.file].classes[a.index].members.get(method)) for a in flow.ancestors(value.cls)]
    own = [v for a, member in members if member is not None for v in flow.values_of(member + flow.variable_offsets[a.file])]
    functions = [v for v in own if isinstance(v, FunctionValue)]
    return bool(functions) and all(_delegates(*program.function_node(function), method) for function in functions)


def _delegates(file: File, function: ast.AST, method: str) -> bool:
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) or not function.args.args:
        return False
    own = function.args.args[0].arg
    reads = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == own]
    return all(_is_harmless(file, function, read, method) for read in reads)


def _is_harmless(file: File, function: ast.AST, read: ast.expr, method: str) -> bool:
    """Whether what is read off ``self`` is asked for its state, tested, a key, or a number."""
    node: ast.AST = read
    while isinstance(file.parents[node], (ast.Attribute, ast.Subscript)) and getattr(file.parents[node], "value", None) is node:
        node = file.parents[node]
    called = file.parents[node]
    if isinstance(node, ast.Attribute) and isinstance(called, ast.Call) and called.func is node:
        return node.attr == method and node.value is not read
    if isinstance(called, ast.Call) and getattr(called.func, "id", "") in _ASKING:
        return True
    return _only_decides(file, function, node) or (isinstance(node, ast.Attribute) and _is_number(_held_by(file, node)))


def _held_by(file: File, attribute: ast.Attribute) -> list[Value]:
    """What an attribute may hold: of one that is stored, what it holds where it is read."""
    if isinstance(attribute.ctx, ast.Load):
        return file.values(attribute)
    text = ast.unparse(attribute)
    reads = (n for n in file.nodes(ast.Attribute) if n.attr == attribute.attr and isinstance(n.ctx, ast.Load))
    return [value for read in reads if ast.unparse(read) == text for value in file.values(read)]


def _only_decides(file: File, function: ast.AST, node: ast.AST) -> bool:
    """Whether an expression is compared, tested, or a key."""
    while node is not function:
        parent = file.parents[node]
        if isinstance(parent, ast.Compare) or node is getattr(parent, "test", None):
            return True
        if isinstance(parent, ast.Dict) and node in parent.keys:
            return True
        if isinstance(parent, ast.Subscript) and node is parent.slice:
            return True
        if not isinstance(parent, (ast.BoolOp, ast.UnaryOp, ast.BinOp)):
            return False
        node = parent
    return False


def _is_number(values: list[Value]) -> bool:
    """Whether one of the values is a number or a text: what a factory of anything hands in besides is of other objects."""
    return any(isinstance(v, Constant) and isinstance(v.value, (int, float, str)) for v in values)
