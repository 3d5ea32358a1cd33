"""What several families of refactorings make: functions of expressions, definitions above a place."""

from __future__ import annotations

from typing import Any

import libcst as cst

from ..code import Code, parsed, statements


def insert_above(code: Code, node: cst.CSTNode, definition: str) -> dict[cst.CSTNode, Any]:
    """The rewrite that puts definitions in front of the statement of the module that a node stands in."""
    lines = statements(f"\n\n{definition}")
    return {code.top(node): lambda updated: [*lines, updated]}


def function_of_expression(code: Code, node: cst.CSTNode, name: str, text: str) -> tuple[str, str] | None:
    """The definition of a function that returns an expression, and the call that stands for it where `node` is.

    Its parameters are the local names that the expression reads. None where these are not certain there.
    """
    read = parsed(f"{text}\n").names(*parsed(f"{text}\n").module.body)
    if read.bound:
        return None
    local = code.enclosing_names(code.function(node)) | inner_names(code, node)
    needed = sorted(read.read & local)
    if any(word in read.read for word in ("super", "__class__", "locals", "vars")):
        return None
    if read.captured & local - inner_names(code, node) and any(_many(code, node, one) for one in read.captured & local):
        return None
    given = ", ".join(needed)
    return f"def {name}({given}):\n    return {text}\n\n\n", f"{name}({given})"


def _many(code: Code, node: cst.CSTNode, name: str) -> bool:
    function = code.function(node)
    return len([one for one in code.variables(within=function, name=name) if code.stored(one)]) > 1


def inner_names(code: Code, node: cst.CSTNode) -> set[str]:
    """Names that comprehensions and lambdas around a node bind."""
    found: set[str] = set()
    for around in code.up(node):
        if isinstance(around, cst.Lambda):
            found |= {param.name.value for param in code.find(cst.Param, within=around.params)}
        elif isinstance(around, cst.BaseComp):
            found |= {name.value for name in code.find(cst.Name, within=around) if code.stored(name)}
    return found
