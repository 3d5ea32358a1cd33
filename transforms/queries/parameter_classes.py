"""Parameters of the repository's own classes, which programs tell apart from others by their class.

Sharding puts a ``DTensor`` in the place of each parameter, which is of none of these classes and has none of their members.
DDP leaves parameters as they are; FSDP1 puts views of its flat parameters in their places, which are plain ones too.
"""

from __future__ import annotations

import ast

from ..flow.library import PARAMETER
from ..flow.values import ClassValue
from .packages import is_test
from .program import Program


def files_that_ask_for_parameter_classes(program: Program) -> frozenset[str]:
    """The files, outside of tests, with an ``isinstance`` of a class derived from ``nn.Parameter``."""
    flow = program.flow
    derived = {v for v in flow.values if isinstance(v, ClassValue) and not PARAMETER.isdisjoint(flow.external_bases(v))}
    if not derived:
        return frozenset()
    files = (program.file(index) for index in program.relevant_files() if not is_test(program.facts[index].path))
    return frozenset(
        file.path
        for file in files
        if "isinstance" in file.source.text
        and any(
            isinstance(call.func, ast.Name) and call.func.id == "isinstance" and len(call.args) == 2
            and not derived.isdisjoint(v for v in file.values(call.args[1]) if isinstance(v, ClassValue))
            for call in file.nodes(ast.Call)
        )
    )  # fmt: skip
