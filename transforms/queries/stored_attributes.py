"""Which attributes a call may assign, in what it calls and in all that this calls."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from .file import File
from .program import Program


def may_assign(file: File, call: ast.Call, attribute: str) -> bool:
    """Whether a call may assign an attribute of this name; one whose functions are out of sight may assign any."""
    called = file.program.callees(file, call)
    if not called:
        return True
    known = file.program.once(_Functions)
    return any(attribute in known.reached(*file.program.function_node(function)) for function in called)


@dataclass(frozen=True, slots=True)
class _Function:
    attributes: frozenset[str]
    """Those that it assigns itself."""
    calls: list[tuple[File, ast.AST]]
    """The functions that it calls."""


@dataclass
class _Functions:
    program: Program
    _found: dict[ast.AST, _Function] = field(default_factory=dict)
    _reached: dict[ast.AST, frozenset[str]] = field(default_factory=dict)

    def reached(self, file: File, function: ast.AST) -> frozenset[str]:
        """What a function and all that it calls assign."""
        if function not in self._reached:
            seen = {function}
            pending = [(file, function)]
            attributes: set[str] = set()
            while pending:
                found = self._of(*pending.pop())
                attributes |= found.attributes
                new = [(owner, other) for owner, other in found.calls if other not in seen]
                seen.update(other for _, other in new)
                pending += new
            self._reached[function] = frozenset(attributes)
        return self._reached[function]

    def _of(self, file: File, function: ast.AST) -> _Function:
        if function not in self._found:
            nodes = list(ast.walk(function))
            stored = (n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
            calls = (n for n in nodes if isinstance(n, ast.Call))
            called = dict.fromkeys(other for call in calls for other in self.program.callees(file, call))
            self._found[function] = _Function(frozenset(stored), [self.program.function_node(other) for other in called])
        return self._found[function]
