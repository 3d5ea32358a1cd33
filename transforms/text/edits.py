"""Edits as replaced stretches of text, applied to a file all at once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .source import Source

_LINE_END = re.compile(r"\r\n|\n|\r")


class EditConflict(Exception):
    """Two edits of one file want the same text; names the reasons of both."""

    def __init__(self, path: str, line: int, first: Edit, second: Edit) -> None:
        super().__init__(f"{path}:{line}: two edits overlap: {first.why!r} and {second.why!r}")
        self.path = path
        self.line = line
        self.first = first
        self.second = second


@dataclass(frozen=True)
class Edit:
    """Replaces `text[start:end]` of a source, in characters; an insertion has `start == end`."""

    start: int
    end: int
    text: str
    why: str

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"not a stretch of text: {self.start}..{self.end} ({self.why})")


def apply_edits(source: Source, edits: Iterable[Edit]) -> str:
    """The source's text with all `edits` made; offsets are those of the text before any of them.

    Insertions at one offset keep the order in which they are given, and come before a replacement that
    starts there. Newlines in an edit become those of the file around it. A replacement that is given twice is
    made once. Raises EditConflict where edits overlap.
    """
    # sorted() is stable, which is what keeps insertions at one offset in order.
    ordered = sorted(edits, key=lambda edit: (edit.start, edit.end))
    pieces: list[str] = []
    reached = 0
    last: Edit | None = None
    for edit in ordered:
        if edit.end > len(source.text):
            raise ValueError(f"{source.path}: edit past the end of the file: {edit}")
        if last is not None:
            if edit == last and edit.start < edit.end:
                continue
            if edit.start < reached:
                raise EditConflict(source.path, source.position(edit.start)[0], last, edit)
        pieces.append(source.text[reached : edit.start])
        pieces.append(_LINE_END.sub(lambda _: source.newline(edit.start), edit.text))  # noqa: B023 - called at once
        reached = edit.end
        last = edit
    pieces.append(source.text[reached:])
    return "".join(pieces)
