"""Comments among the arguments of a wrap: they go where what they are about goes."""

from __future__ import annotations

import ast
import io
import tokenize

from ..view import FileView

_WITHOUT_A_TRACE = frozenset(
    {"limit_all_gathers", "use_orig_params", "backward_prefetch", "forward_prefetch", "device_id"}
)
"""Arguments that leave nothing behind, and so nothing to be said about."""
_FOR_TOOLS = ("noqa", "type:", "pyright:", "pylint:", "fmt:", "to-fsdp2", "mypy:")


def comments_of(view: FileView, call: ast.Call) -> dict[str, list[str]]:
    """The comments above and behind each keyword of a call; those inside a value stay with its text."""
    found: dict[str, list[str]] = {}
    for line, text, alone in _comments(view, call):
        if text.lstrip("# ").startswith(_FOR_TOOLS):
            continue
        keyword = _subject(call, line, alone)
        if keyword is not None and keyword.arg not in _WITHOUT_A_TRACE:
            found.setdefault(keyword.arg or "", []).append(text)
    return found


def _subject(call: ast.Call, line: int, alone: bool) -> ast.keyword | None:
    """The keyword that a comment is about: the next one below a comment of its own line, or the one that ends beside it."""
    for keyword in call.keywords:
        end = keyword.end_lineno or keyword.lineno
        if keyword.lineno <= line < end:
            return None  # inside the value
        if (alone and keyword.lineno > line) or (not alone and end == line):
            return keyword
    return None


def _comments(view: FileView, call: ast.Call) -> list[tuple[int, str, bool]]:
    """(line, text, whether it has the line to itself) of each comment between the brackets of a call."""
    text = view.text(call)
    lines = text.splitlines()
    found: list[tuple[int, str, bool]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            found.append((call.lineno + row - 1, token.string.rstrip(), not lines[row - 1][:column].strip()))
    return found
