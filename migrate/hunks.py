"""A patch of one file read back: which lines of the old text become which of the new one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_HEAD = re.compile(rb"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")


@dataclass
class Block:
    """Lines that stay, or lines that are removed and those that take their place. Numbers count from 1."""

    old: int
    """The first line of it in the old text; where lines are only added, the one that they come in front of."""
    new: int
    kept: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)

    @property
    def is_change(self) -> bool:
        """Whether anything becomes something else here."""
        return not self.kept

    def touches(self, line: int, end_line: int) -> bool:
        """Whether it takes the place of any of these lines of the old text."""
        return self.old <= end_line and line < self.old + len(self.removed)


def hunks(patch: bytes) -> list[list[Block]]:
    """The blocks of each hunk, in order."""
    found: list[list[Block]] = []
    for line in patch.split(b"\n"):
        head = _HEAD.match(line)
        if head is not None:
            # In an empty range, the number is that of the line before.
            found.append([Block(max(1, int(head[1])), max(1, int(head[2])))])
        elif found and line[:1] in (b" ", b"-", b"+"):
            _add(found[-1], line[:1], line[1:].decode("utf-8", "replace"))
    return found


def _add(blocks: list[Block], kind: bytes, text: str) -> None:
    block = blocks[-1]
    stays = kind == b" "
    if (stays and block.removed + block.added) or (not stays and block.kept):
        block = Block(block.old + len(block.kept + block.removed), block.new + len(block.kept + block.added))
        blocks.append(block)
    (block.kept if stays else block.removed if kind == b"-" else block.added).append(text)


def changes(patch: bytes) -> Iterator[Block]:
    """The blocks that change something."""
    return (block for hunk in hunks(patch) for block in hunk if block.is_change and block.removed + block.added)
