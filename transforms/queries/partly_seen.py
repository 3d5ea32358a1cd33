"""Answers about a value that rest on part of what comes there, and what else is known of it."""

from __future__ import annotations

import ast

from ..flow.library import makes_no_modules
from ..flow.values import Constant, Container, Opaque, Value
from .answers import Answer, Sharding
from .file import File
from .loaded_objects import comes_from_file


def unless_unseen(file: File, node: ast.AST, found: Sharding) -> Sharding:
    """An answer, or *unknown* where plain data is all that is known to come, and a call that leads nowhere gives more."""
    if found.answer is Answer.NO and file.variable(node) in file.program.flow.partly_unseen:
        if all(map(_is_data, file.values(node))):
            return Sharding(Answer.UNKNOWN)
    return found


def _is_data(value: Value) -> bool:
    return isinstance(value, (Constant, Container)) or (isinstance(value, Opaque) and makes_no_modules(value.name))


def unless_loaded(found: Sharding, file: File, node: ast.AST) -> Sharding:
    """An answer, or *no* for what comes out of a file and nothing else is known of."""
    return Sharding(Answer.NO) if found == Sharding(Answer.UNKNOWN) and comes_from_file(file, node) else found
