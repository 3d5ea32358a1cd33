"""Where a wrapper's constructor stands, and the statements that take the place of the one around it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import libcst as cst

from ..queries.file import File
from .changes import Change, Statement, replace_statement
from .templates import statements


@dataclass(frozen=True)
class WrapPlace:
    """``target = Wrapper(module, …)`` or ``return Wrapper(module, …)`` as a statement of its own.

    ``name`` is how the sharded module is called in generated code: the module's own name, else the target's.
    """

    file: File
    statement: ast.Assign | ast.Return
    call: ast.Call
    module: ast.expr
    name: str
    before: str
    """A statement in front: where the module is made or moved in the call itself."""
    after: str
    """A statement behind: the target gets the module, or it is returned."""

    def rewritten(self, lines: Callable[[str], str], **holes: str) -> Change:
        """The change to these lines of code, given the module's name; lines may hold ``{holes}``."""
        text = f"{self.before}{lines(self.name)}{self.after}"

        def build(node: Statement) -> Sequence[Statement]:
            given = _first_argument(node, self.call)
            return statements(text, module=given, **holes)

        return replace_statement(self.file, self.statement, build)


def wrap_place(file: File, call: ast.Call) -> WrapPlace | None:
    """The place of a constructor call that is the whole of an assignment or a return; None for others."""
    statement = file.parents[call]
    module = wrapped_argument(call)
    if module is None:
        return None
    simple = ast.unparse(module) if isinstance(module, (ast.Name, ast.Attribute)) else None
    if isinstance(statement, ast.Return):
        name = simple or file.free_name("model")
        before = "" if simple else f"{name} = {{module}}\n"
        return WrapPlace(file, statement, call, module, name, before, f"return {name}\n")
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    if not isinstance(target, (ast.Name, ast.Attribute)):
        return None
    text = ast.unparse(target)
    if simple == text:
        return WrapPlace(file, statement, call, module, text, "", "")
    if simple is not None:
        return WrapPlace(file, statement, call, module, simple, "", f"{text} = {simple}\n")
    return WrapPlace(file, statement, call, module, text, f"{text} = {{module}}\n", "")


def wrapped_argument(call: ast.Call) -> ast.expr | None:
    """The module that a constructor call wraps; None where it is not written out."""
    module = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "module"), None)
    return None if isinstance(module, ast.Starred) else module


def _first_argument(node: Statement, call: ast.Call) -> cst.BaseExpression:
    """The module that is handed to the wrapper, as it is by now in the libcst statement."""
    del call
    (line,) = node.body  # type: ignore[misc]
    value = line.value  # type: ignore[union-attr]
    assert isinstance(value, cst.Call)
    positional = next((a for a in value.args if a.keyword is None), None)
    argument = positional or next(a for a in value.args if a.keyword is not None and a.keyword.value == "module")
    return argument.value
