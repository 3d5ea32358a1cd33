"""Functions of policies that do more than answer: it matters which modules they are asked about, and when."""

from __future__ import annotations

import ast

from ..analysis.values import FunctionValue
from ..leaving.harmless import is_harmless
from ..program import Program
from ..view import FileView
from .policy_definitions import WRAP, Definition


def is_asked_for_all(program: Program, definition: Definition) -> bool:
    """Whether FSDP1 asks a policy's function about every module, the model itself too, and it may do more than answer."""
    if definition.symbol != f"{WRAP}CustomPolicy" or definition.argument is None:
        return False
    values = definition.view.values(definition.argument)
    functions = [program.function_node(value) for value in values if isinstance(value, FunctionValue)]
    return len(functions) < len(values) or not functions or not all(_only_answers(view, node) for view, node in functions)


def _only_answers(view: FileView, function: ast.AST) -> bool:
    """Whether a function leaves everything but its own names as it is."""
    body = [function.body] if isinstance(function, ast.Lambda) else getattr(function, "body", [])
    for node in (inner for part in body for inner in ast.walk(part)):
        if isinstance(node, (ast.Global, ast.Nonlocal, ast.Delete)):
            return False
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            return False
    return all(is_harmless(view, part) for part in body)
