"""What the new side changed, in parts that can be taken back: hunks of the diff, as far as they stand alone.

A part that makes no sense without another one (a file then does not parse, or both lie in one statement) is one with it.
"""

from __future__ import annotations

import ast
import difflib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .changes import Changes, own_lines
from .names import missing_names
from .sides import Place

Lines = range
"""Lines of a text, counted from 0."""
LARGEST_BLOCK = 2500
"""Lines of the old text times lines of the new one, up to which lines that are alike are looked for."""


@dataclass(frozen=True)
class Block:
    """Lines of the old text and those that take their place."""

    old: Lines
    new: Lines


@dataclass(frozen=True)
class Part:
    """A change that is made or taken back as one. Without blocks, it is the whole of the file."""

    file: str
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True)
class ChangedText:
    """A file of which the sides hold different texts (None: no such file), and where it lies below the new side's top."""

    name: str
    place: Path
    old: bytes | None
    new: bytes | None
    ran: tuple[frozenset[int], frozenset[int]] = frozenset(), frozenset()
    """Lines of the old and of the new text that were executed, counted from 0."""

    @property
    def in_hunks(self) -> bool:
        """Whether parts of it can be taken back."""
        return self.name.endswith(".py") and self.old is not None and self.new is not None

    @property
    def lines(self) -> tuple[list[str], list[str]]:
        """Both texts, line by line with their ends."""
        return _lines(self.old or b""), _lines(self.new or b"")


def read_texts(changes: Changes, new: Place) -> list[ChangedText]:
    """What differs, as it is before anything runs."""
    paths = [(file.name, file.old_path, file.new_path) for file in changes.files]
    for name, old in changes.other.items():
        path = Path(os.path.normpath(new.root / name))
        paths.append((name, old, path if path.is_file() else None))
    return [
        ChangedText(name, Path(os.path.normpath(new.root / name)).relative_to(new.top), _read(old), _read(path))
        for name, old, path in paths
    ]


def _read(path: Path | None) -> bytes | None:
    return path.read_bytes() if path is not None and path.is_file() else None


def _lines(data: bytes) -> list[str]:
    return data.decode("utf-8", "surrogateescape").splitlines(keepends=True)


def parts_of(text: ChangedText) -> list[Part]:
    """The parts of one file, in its order."""
    if not text.in_hunks:
        return [Part(text.name)]
    old, new = text.lines
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    blocks = [Block(range(a, b), range(c, d)) for tag, a, b, c, d in matcher.get_opcodes() if tag != "equal"]
    groups = _in_one_statement([piece for block in blocks for piece in _pieces(block, old, new)], old, new)
    number = 0
    while number < len(groups) and len(groups) > 1:
        others = [block for group in groups if group is not groups[number] for block in group]
        if all(_tree(written(text, chosen)) is not None for chosen in (groups[number], others)):
            number += 1
        else:
            first = min(number, len(groups) - 2)
            groups[first : first + 2] = [groups[first] + groups[first + 1]]
            number = first
    return [Part(text.name, tuple(group)) for group in groups]


def _pieces(block: Block, old: list[str], new: list[str]) -> Iterator[Block]:
    """A block in which line after line took the place of a similar one, line by line."""
    if len(block.old) == len(block.new):
        yield from (Block(range(a, a + 1), range(c, c + 1)) for a, c in zip(block.old, block.new, strict=True))
        return
    if len(block.old) * len(block.new) > LARGEST_BLOCK:
        yield block
        return
    a, c = first, second = block.old.start, block.new.start
    last = ""
    compared = difflib.ndiff([old[line] for line in block.old], [new[line] for line in block.new], None, None)
    for sign in (line[0] for line in compared if line[0] != "?"):
        if (a, c) != (first, second) and last == "+" and sign == "-":
            yield Block(range(first, a), range(second, c))
            first, second = a, c
        a, c, last = a + (sign != "+"), c + (sign != "-"), sign
    yield Block(range(first, a), range(second, c))


def _in_one_statement(blocks: list[Block], old: list[str], new: list[str]) -> list[list[Block]]:
    """Blocks that lie in one statement of either text are one group."""
    statements = [list(_statements(lines)) for lines in (old, new)]
    joined: list[list[Block]] = []
    for block in blocks:
        before = joined[-1][-1] if joined else None
        if before is not None and (
            _share(statements[0], before.old, block.old) or _share(statements[1], before.new, block.new)
        ):
            joined[-1].append(block)
        else:
            joined.append([block])
    return joined


def _statements(lines: list[str]) -> Iterator[set[int]]:
    tree = _tree("".join(lines))
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.stmt):
            own = {line - 1 for line in own_lines(node)}
            if len(own) > 1:
                yield own


def _share(statements: list[set[int]], first: Lines, second: Lines) -> bool:
    return any(own.intersection(first) and own.intersection(second) for own in statements)


def _tree(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return None


def written(text: ChangedText, blocks: list[Block]) -> str:
    """The old text with some of the blocks as they are in the new one."""
    return "".join(line for line, _ in _composed(text, blocks))


def _composed(text: ChangedText, blocks: list[Block]) -> Iterator[tuple[str, bool]]:
    """Line by line, each with whether it was executed where it comes from."""
    old, new = text.lines
    done = 0
    for block in sorted(blocks, key=lambda block: (block.old.start, block.new.start)):
        yield from ((old[line], line in text.ran[0]) for line in range(done, block.old.start))
        yield from ((new[line], line in text.ran[1]) for line in block.new)
        done = block.old.stop
    yield from ((old[line], line in text.ran[0]) for line in range(done, len(old)))


def compose(texts: list[ChangedText], made: list[Part]) -> dict[str, bytes | None]:
    """The files with the parts that are made: their content by name, None for one that is not there."""
    files: dict[str, bytes | None] = {}
    for text in texts:
        own = [part for part in made if part.file == text.name]
        if text.in_hunks:
            blocks = [block for part in own for block in part.blocks]
            files[text.name] = written(text, blocks).encode("utf-8", "surrogateescape")
        else:
            files[text.name] = text.new if own else text.old
    return files


def holds_together(texts: list[ChangedText], made: list[Part]) -> bool:
    """Whether no executed line misses a name: what surely ends by a NameError needs no run."""
    sources: dict[str, tuple[str, frozenset[int]] | None] = {}
    for text in texts:
        if not text.name.endswith(".py"):
            continue
        own = [part for part in made if part.file == text.name]
        if text.in_hunks:
            lines = list(_composed(text, [block for part in own for block in part.blocks]))
            ran = frozenset(number for number, (_, executed) in enumerate(lines, start=1) if executed)
            sources[text.name] = "".join(line for line, _ in lines), ran
        else:
            data, executed = (text.new, text.ran[1]) if own else (text.old, text.ran[0])
            lined = frozenset(line + 1 for line in executed)
            sources[text.name] = None if data is None else ("".join(_lines(data)), lined)
    return not missing_names(sources)
