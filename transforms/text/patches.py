"""Patches: how a rule says what text replaces what, when the new text still holds pieces of the old.

A wrap's rewrite holds the text of its arguments, and an argument may be rewritten by another rule. So the new
text of a patch is made of strings and of stretches of the old text; a stretch is rendered with the patches
inside it applied. Flattened, patches become edits.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .edits import Edit
from .source import Source


@dataclass(frozen=True)
class Old:
    """A stretch of the old text, with the patches inside it applied; ``indent`` re-indents its lines."""

    start: int
    end: int
    indent: str | None = None


Part = str | Old


@dataclass(frozen=True)
class Patch:
    """Replaces ``[start, end)`` of a file with ``parts``; an insertion has ``start == end``."""

    file: str
    start: int
    end: int
    parts: tuple[Part, ...]
    why: str
    needed: bool = False
    """Whether text that goes may not take this patch with it."""

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Stretches of old text that live on inside this patch."""
        return [(part.start, part.end) for part in self.parts if isinstance(part, Old)]


class PatchConflict(Exception):
    """Two patches want the same text and neither lies inside a piece the other keeps."""

    def __init__(self, first: Patch, second: Patch) -> None:
        super().__init__(f"{first.file}: {first.why!r} and {second.why!r} change the same text")
        self.first = first
        self.second = second


def old(source: Source, node: ast.AST, indent: str | None = None) -> Old:
    """The text of a node, to be kept in a patch."""
    start, end = source.span(node)
    return Old(start, end, indent)


def flatten(source: Source, patches: Iterable[Patch]) -> list[Edit]:
    """Edits that do what the patches say. Raises PatchConflict where two of them overlap.

    A patch that lies inside text which another one drops is dropped with it, unless it is needed.
    """
    ordered = sorted(dict.fromkeys(patches), key=lambda patch: (patch.start, -patch.end))
    outer: list[Patch] = []
    for patch in ordered:
        covering = outer[-1] if outer else None
        if covering is not None and covering.start < covering.end and patch.start < covering.end:
            if patch.end > covering.end:
                raise PatchConflict(covering, patch)
            if patch.start > covering.start or patch.end < covering.end or patch.start < patch.end:
                if (patch.start, patch.end) == (covering.start, covering.end) and patch.parts != covering.parts:
                    raise PatchConflict(covering, patch)
                if patch.needed and not any(s <= patch.start and patch.end <= e for s, e in covering.spans):
                    raise PatchConflict(covering, patch)
                continue
        outer.append(patch)
    return [Edit(patch.start, patch.end, _render(source, patch, ordered), patch.why) for patch in outer]


def patched(source: Source, span: tuple[int, int], patches: Iterable[Patch]) -> str:
    """A stretch of the old text once the patches in it are applied."""
    reached, end = span
    pieces: list[str] = []
    for edit in flatten(source, [p for p in patches if reached <= p.start and p.end <= end]):
        pieces += source.text[reached : edit.start], edit.text
        reached = edit.end
    return "".join([*pieces, source.text[reached:end]])


def _render(source: Source, patch: Patch, patches: Sequence[Patch]) -> str:
    return "".join(
        part if isinstance(part, str) else _render_old(source, part, patch, patches) for part in patch.parts
    )


def _render_old(source: Source, part: Old, owner: Patch, patches: Sequence[Patch]) -> str:
    inside = [
        other
        for other in patches
        if other is not owner
        and part.start <= other.start
        and other.end <= part.end
        and (other.start, other.end) != (owner.start, owner.end)
        and not _belongs_to_next_line(source, part, other)
        and not _belongs_to_list(part, owner, other)
    ]
    pieces: list[str] = []
    reached = part.start
    for edit in flatten(source, inside):
        pieces.append(source.text[reached : edit.start])
        pieces.append(edit.text)
        reached = edit.end
    pieces.append(source.text[reached : part.end])
    text = "".join(pieces)
    if part.indent is None:
        return text
    before = source.indent_at(part.start)
    if part.start in source.line_starts:
        return reindent("\n" + text, before, part.indent)[1:]  # whole lines: the first moves like the others
    return reindent(text, before, part.indent)


def _belongs_to_next_line(source: Source, part: Old, other: Patch) -> bool:
    """Whether an insertion at the end of whole lines is one before the line that follows them."""
    if part.start == part.end:
        return False
    return other.start == other.end == part.end and source.text[part.end - 1 : part.end] == "\n"


def _belongs_to_list(part: Old, owner: Patch, other: Patch) -> bool:
    """Whether an insertion behind an expression that is repeated elsewhere adds an element to the list around it."""
    if not other.start == other.end == part.end or owner.start < other.start < owner.end:
        return False
    return bool(other.parts) and isinstance(other.parts[0], str) and other.parts[0].startswith(",")


def reindent(text: str, before: str, after: str) -> str:
    """Moves a block from one indentation to another; its first line starts without one."""
    if before == after:
        return text
    first, newline, rest = text.partition("\n")
    lines = [
        after + line[len(before) :] if line.startswith(before) and line.strip() else line
        for line in rest.splitlines(keepends=True)
    ]
    return first + newline + "".join(lines)


def block(text: str, indent: str) -> str:
    """Generated statements at an indentation: dedented, each line indented, ends with a newline."""
    return textwrap.indent(textwrap.dedent(text).strip("\n") + "\n", indent)
