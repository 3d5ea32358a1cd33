"""Methods that compute by calling their own model, as most ``generate`` do: its forward gathers what they need."""

from __future__ import annotations

import ast

from ..flow.values import Bound, Constant, FunctionValue, Instance, Value
from .file import File
from .program import Program
from .sharding import ShardingQueries

_SWITCHES = frozenset({"training", "eval", "train", "device", "dtype"})


def runs_forward_alone(program: Program, sharding: ShardingQueries, value: Value) -> bool:
    """Whether a method does nothing with the object that it is called on but call it, and read plain settings off it."""
    function = value.function if isinstance(value, Bound) else value
    if not isinstance(function, FunctionValue):
        return False
    file, node = program.function_node(function)
    if not isinstance(node, ast.FunctionDef) or not node.args.args or node.args.args[0].arg != "self":
        return False
    uses = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in ("self", "super", "__class__")]
    return any(_is_called(file, use) for use in uses) and all(_is_harmless(file, sharding, use) for use in uses)


def _is_called(file: File, node: ast.expr) -> bool:
    parent = file.parents[node]
    return isinstance(parent, ast.Call) and parent.func is node


def _is_harmless(file: File, sharding: ShardingQueries, use: ast.Name) -> bool:
    if use.id != "self":
        return False
    read = file.parents[use]
    if not isinstance(read, ast.Attribute):
        return _is_called(file, use)
    if read.attr in _SWITCHES:
        return True
    found = file.values(read)
    return bool(found) and all(isinstance(v, Constant) or (isinstance(v, Instance) and sharding.is_no_module(v)) for v in found)
