"""Places inside of a context that is given a sharded model: it may hold the model whole there."""

from __future__ import annotations

import ast

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
        if any(self._may_gather(file, a) for a in file.ancestors(node) if isinstance(a, (ast.With, ast.AsyncWith))):
            return True
        function = file.function(node)
        if function is None or depth > _DEEPEST:
            return False
        if function not in self._functions:
            self._functions[function] = False
            callers = self.program.callers(file, function)
            self._functions[function] = any(self.hold(caller, call, depth + 1) for caller, call in callers)
        return self._functions[function]

    def _may_gather(self, file: File, statement: ast.With | ast.AsyncWith) -> bool:
        for call in (item.context_expr for item in statement.items if isinstance(item.context_expr, ast.Call)):
            given = [*call.args, *(keyword.value for keyword in call.keywords)]
            if any(isinstance(part, (ast.Name, ast.Attribute)) and self.models.of(file, part) for part in given):
                return True
        return False
