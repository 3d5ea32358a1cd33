"""Code that runs inside forwards of modules: what decides which ranks come there stands around the call of the model."""

from __future__ import annotations

import ast

from ..flow.values import ClassValue
from .file import File
from .program import Program

_DEEPEST = 4


def runs_in_forwards(file: File, node: ast.AST) -> bool:
    """Whether a place is in a module's ``forward``, or in a function that such ones alone call."""
    function = file.function(node)
    return function is not None and file.program.once(_Known).is_in_forwards(file, function, 0) is True


def is_in_module(file: File, node: ast.AST) -> bool:
    """Whether a place is in a method of a module's class."""
    around = file.enclosing_class(node)
    return around is not None and any(base.startswith("torch.nn.") for base in _bases(file, around))


class _Known:
    """What has been found out about functions; one that is being asked about says nothing of itself."""

    def __init__(self, _: Program) -> None:
        self._known: dict[ast.AST, bool | None] = {}

    def is_in_forwards(self, file: File, function: ast.AST, depth: int) -> bool | None:
        if function not in self._known and depth <= _DEEPEST:
            self._known[function] = None
            self._known[function] = self._asked(file, function, depth)
        return self._known.get(function, False)

    def _asked(self, file: File, function: ast.AST, depth: int) -> bool:
        if any(_is_forward(file, around) for around in (function, *file.ancestors(function))):
            return True
        owners = [(caller, caller.function(call)) for caller, call in file.program.callers(file, function)]
        answers = [owner is not None and self.is_in_forwards(caller, owner, depth + 1) for caller, owner in owners]
        return any(answers) and all(answer is not False for answer in answers)


def _is_forward(file: File, node: ast.AST) -> bool:
    cls = file.parents.get(node)
    if not isinstance(node, ast.FunctionDef) or node.name != "forward" or not isinstance(cls, ast.ClassDef):
        return False
    return any("." in base and base.partition(".")[0] not in ("abc", "builtins", "typing") for base in _bases(file, cls))


def _bases(file: File, cls: ast.ClassDef) -> set[str]:
    return {base for v in file.values(cls) if isinstance(v, ClassValue) for base in file.program.flow.external_bases(v)}
