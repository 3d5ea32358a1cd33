"""Comments about the wrapper above statements that go: they go with them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..text.patches import Patch
from ..view import FileView

ABOUT_WRAPPERS = re.compile(r"\b(un)?wrap(s|ped|ping)?\b|\bD?DP\b|\bFSDP1?\b|\bDistributedDataParallel\b|\.module\b", re.I)
_WHY = "it is about something that is gone"


def remarks(view: FileView, patches: Sequence[Patch]) -> list[Patch]:
    """Deletions of the comments right above whole lines that go, where these speak of wrapping."""
    lines, starts = view.source.lines, view.source.line_starts
    inserted = {patch.start for patch in patches if patch.start == patch.end}
    found: list[Patch] = []
    for patch in patches:
        if patch.parts or patch.start == patch.end or patch.start not in starts:
            continue
        if inserted & {patch.start, patch.end}:
            continue  # the comment may be about what comes in its place
        last = view.source.position(patch.start)[0] - 1
        indent = view.source.indent_at(patch.start)
        first = last
        while first and lines[first - 1].startswith(f"{indent}#"):
            first -= 1
        if first < last and ABOUT_WRAPPERS.search("".join(lines[first:last])):
            found.append(Patch(view.path, starts[first], starts[last], (), _WHY))
    return found
