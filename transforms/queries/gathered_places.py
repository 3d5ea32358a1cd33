"""Places inside of a context that is given a sharded model: it may hold the model whole there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .file import File
from .program import Program
from .sharded_models import ShardedModels

_DEEPEST = 3


class GatheredPlaces:
    """Which places lie in such a context, in their function or in one that calls it."""

    def __init__(self, program: Program, models: ShardedModels) -> None:
        self.program = program
        self.models = models
        self._functions: dict[ast.AST, bool] = {}

    def hold(self, file: File, node: ast.AST, depth: int = 0) -> bool:
        """Whether a context around a place may have gathered what is sharded."""
        if any(self._may_gather(file, call) for call in contexts_around(file, node)):
            return True
        function = file.function(node)
        if function is None or depth > _DEEPEST:
            return False
        if function not in self._functions:
            self._functions[function] = False
            callers = self.program.callers(file, function)
            self._functions[function] = any(self.hold(caller, call, depth + 1) for caller, call in callers)
        return self._functions[function]

    def _may_gather(self, file: File, context: ast.Call) -> bool:
        given = [*context.args, *(keyword.value for keyword in context.keywords)]
        return any(isinstance(part, (ast.Name, ast.Attribute)) and self.models.of(file, part) for part in given)


def contexts_around(file: File, node: ast.AST) -> Iterator[ast.Call]:
    """The calls that make the contexts around a place in its function: of ``with``, and entered in front of it."""
    inside = node
    for around in file.ancestors(node):
        if isinstance(inside, ast.stmt):
            block, index = file.block_of(inside)
            yield from (context for earlier in block[:index] for context in _entered(earlier))
        if isinstance(around, (ast.With, ast.AsyncWith)):
            yield from (item.context_expr for item in around.items if isinstance(item.context_expr, ast.Call))
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return
        inside = around


def _entered(statement: ast.stmt) -> Iterator[ast.Call]:
    """The contexts that a call of one line enters: ``stack.enter_context(context(...))``, ``held = entered(context(...))``."""
    call = statement.value if isinstance(statement, (ast.Assign, ast.Expr)) else None
    if isinstance(call, ast.Call) and "enter" in ast.unparse(call.func).rpartition(".")[2]:
        yield from (given for given in call.args if isinstance(given, ast.Call))
