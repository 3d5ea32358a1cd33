"""Classes of the repository that derive from a wrapper. What they wrap stays wrapped: FSDP2 has no class to derive from."""

from __future__ import annotations

import ast

from ..analysis.values import ClassValue, Instance
from ..program import Program
from ..view import FileView


class Subclasses:
    """The subclasses of the wrappers, and the calls that build them."""

    def __init__(self, program: Program) -> None:
        self.kinds: dict[ClassValue, str] = {}
        """FSDP1 or DDP for every subclass."""
        self.built: dict[int, Instance] = {}
        """What each call of a subclass makes, by the number of the call."""
        flow = program.flow
        for index, file in enumerate(program.files):
            for position in range(len(file.classes)):
                cls = ClassValue(index, position)
                kind = flow.wrapper_kind(cls)
                if kind is not None:
                    self.kinds[cls] = kind
                    self.built.update({i.site: i for i in flow.instances.get(cls, ()) if i.site >= 0})

    def around(self, view: FileView, node: ast.AST) -> ClassValue | None:
        """The subclass whose definition a node is part of."""
        definition = view.enclosing_class(node) if self.kinds else None
        values = view.values(definition) if definition is not None else []
        return next((value for value in values if isinstance(value, ClassValue) and value in self.kinds), None)
