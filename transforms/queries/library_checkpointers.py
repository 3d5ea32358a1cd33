"""Checkpointers of libraries, and the repository's own classes after them, that write on one rank."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..flow.values import ClassValue
from .file import File

CHECKPOINTERS = (
    "fvcore.common.checkpoint.Checkpointer",
    "detectron2.checkpoint.Checkpointer",
    "detectron2.checkpoint.DetectionCheckpointer",
    "detectron2.checkpoint.detection_checkpoint.DetectionCheckpointer",
)

PERIODIC = (
    "fvcore.common.checkpoint.PeriodicCheckpointer",
    "detectron2.checkpoint.PeriodicCheckpointer",
    "detectron2.engine.hooks.PeriodicCheckpointer",
)
"""What calls their ``save`` now and then, for all ranks or where one alone has it: they themselves ask which rank writes."""


def own_checkpointers(file: File) -> Iterator[tuple[ast.Call, str]]:
    """Calls that make an object of a class of the repository which saves as one of these does, with the base's name."""
    flow = file.program.flow
    for call in file.nodes(ast.Call):
        for value in file.called_values(call):
            if isinstance(value, ClassValue) and not flow.has_member(value, "save"):
                base = next((base for base in flow.external_bases(value) if base in CHECKPOINTERS), None)
                if base is not None:
                    yield call, base
                    break
