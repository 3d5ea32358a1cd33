"""Patches that `git apply` takes, made of bytes so that every encoding and newline survives."""

from __future__ import annotations

import difflib

_NO_NEWLINE = b"\n\\ No newline at end of file\n"


def file_patch(path: str, old: bytes | None, new: bytes | None) -> bytes:
    """The patch of one file; `old` is None for a file that is to be added, `new` for one to be removed. Empty when
    nothing changes.

    `path` is POSIX and relative to the repository's root, which is what `git apply` expects from every
    folder.
    """
    if old == new:
        return b""
    header = [b"diff --git " + _quoted(f"a/{path}") + b" " + _quoted(f"b/{path}") + b"\n"]
    if old is None:
        header.append(b"new file mode 100644\n")
    if new is None:
        header.append(b"deleted file mode 100644\n")
    before = b"/dev/null" if old is None else _label(f"a/{path}")
    after = b"/dev/null" if new is None else _label(f"b/{path}")
    body = difflib.diff_bytes(difflib.unified_diff, _lines(old or b""), _lines(new or b""), before, after, lineterm=b"\n")
    return b"".join(header + [line if line.endswith(b"\n") else line + _NO_NEWLINE for line in body])


def _lines(data: bytes) -> list[bytes]:
    """git ends a line at `\\n` alone; a carriage return belongs to the line."""
    lines = data.split(b"\n")
    ended = [line + b"\n" for line in lines[:-1]]
    return [*ended, lines[-1]] if lines[-1] else ended


def _label(name: str) -> bytes:
    quoted = _quoted(name)
    # Without the tab, what follows a space would be read as a timestamp.
    return quoted + b"\t" if b" " in quoted and not quoted.startswith(b'"') else quoted


def _quoted(name: str) -> bytes:
    """A name as git writes it: in C quotes where it holds more than plain ASCII."""
    data = name.encode("utf-8", "surrogateescape")
    if all(32 <= byte < 127 and byte not in b'"\\' for byte in data):
        return data
    escaped = b"".join(bytes([byte]) if 32 <= byte < 127 and byte not in b'"\\' else b"\\%03o" % byte for byte in data)
    return b'"' + escaped + b'"'
