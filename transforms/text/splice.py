"""New text for a file that libcst does not give back as it was: unchanged lines keep their own bytes."""

from __future__ import annotations

import re
from difflib import SequenceMatcher

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def splice(text: str, reread: str, changed: str) -> str:
    """``changed`` with the lines of ``text`` wherever those of ``reread`` (``text`` as libcst prints it) are unchanged.

    A bare carriage return or a form feed in front of code is printed differently; as many lines come out either way.
    """
    if text == reread:
        return changed
    original, printed, new = (_LINE.findall(part) for part in (text, reread, changed))
    if len(original) != len(printed):
        raise ValueError("the file has line ends that cannot be kept")
    result: list[str] = []
    for kind, start, end, new_start, new_end in SequenceMatcher(None, printed, new, autojunk=False).get_opcodes():
        result += original[start:end] if kind == "equal" else new[new_start:new_end]
    return "".join(result)
