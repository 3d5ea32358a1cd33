"""Guards between which ranks exchange messages: a rank in one of them waits for another rank in the next."""

from __future__ import annotations

import ast

from ..flow.values import FunctionValue
from .conditions import is_rank_condition
from .file import File
from .program import Program

_NAMES = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list")
_OF_MESSAGES = frozenset(f"torch.distributed.{name}" for name in _NAMES)
_SAID = rf"\b(?:{'|'.join(_NAMES)})\b"
_DEEPEST = 3


def message_guards(file: File, guard: ast.stmt) -> list[ast.stmt]:
    """The guards of a block, this one among them, behind which ranks send or receive; none where this one does not, or alone.

    Nothing may be gathered between the first and the last: the rank that waits for a message cannot come to it.
    """
    if not isinstance(guard, ast.If) or not file.program.mentions(_SAID) or not _exchanges(file, guard):
        return []
    block, _ = file.block_of(guard)
    found = [s for s in block if isinstance(s, ast.If) and is_rank_condition(file, s.test) and _exchanges(file, s)]
    return list[ast.stmt](found) if len(found) > 1 and guard in found else []


def _exchanges(file: File, place: ast.AST, depth: int = 0) -> bool:
    known = file.program.once(_Known)
    for call in (n for n in ast.walk(place) if isinstance(n, ast.Call)):
        if file.external(call.func) in _OF_MESSAGES:
            return True
        for callee in file.program.callees(file, call) if depth < _DEEPEST else ():
            if (callee, depth) not in known:
                known[callee, depth] = _exchanges(*file.program.function_node(callee), depth + 1)
            if known[callee, depth]:
                return True
    return False


class _Known(dict[tuple[FunctionValue, int], bool]):
    """Whether functions exchange messages, by how many calls away they are looked at."""

    def __init__(self, _: Program) -> None:
        super().__init__()
