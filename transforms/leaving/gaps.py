"""Blank lines behind statements that go: at the head of a block nothing is left for them to set apart."""

from __future__ import annotations

from collections.abc import Sequence

from ..text.patches import Patch
from ..view import FileView

_WHY = "what it set apart is gone"


def gaps(view: FileView, patches: Sequence[Patch]) -> list[Patch]:
    """Deletions of the blank lines behind whole lines that go, where these are the first of a block."""
    lines, starts = view.source.lines, view.source.line_starts
    gone: set[int] = set()
    for patch in patches:
        (first, left), (last, right) = map(view.source.position, (patch.start, patch.end))
        if not patch.parts and left == right == 1:
            gone.update(range(first - 1, last - 1))
    found: list[Patch] = []
    for number in sorted(gone):
        behind = first = number + 1
        while behind < len(lines) and not lines[behind].strip():
            behind += 1
        head = number
        while head in gone:
            head -= 1
        opens = head >= 0 and lines[head].rstrip().endswith(":") and not lines[head].lstrip().startswith("#")
        if first in gone or behind == first or behind == len(lines) or not opens:
            continue
        if not any(starts[head + 1] <= patch.start < starts[behind] and patch.parts for patch in patches):
            found.append(Patch(view.path, starts[first], starts[behind], (), _WHY))
    return found
