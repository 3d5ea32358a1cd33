"""Where import lines stand and how their names are ordered: as in the imports around them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .source import Source

ImportStatement = ast.Import | ast.ImportFrom
_Key = tuple[object, ...]


def ordered_names(names: list[str], coming: Sequence[str]) -> list[str]:
    """New names among the old: sorted where the old ones were, behind them otherwise."""
    added = [name for name in coming if name not in names]
    for key in (_by_kind, str, str.lower):
        if names == sorted(names, key=key):
            return sorted([*names, *added], key=key)
    return [*names, *added]


def _by_kind(name: str) -> tuple[int, str]:
    """Constants, classes, functions: the order of names that isort and ruff write."""
    bare = name.partition(" ")[0]
    kind = 0 if bare.isupper() and len(bare) > 1 else 1 if bare[:1].isupper() else 2
    return kind, bare.lower()


@dataclass(frozen=True)
class NewLine:
    """An import statement that a file needs: its text, without a line end, and what it is sorted by."""

    text: str
    module: str
    member: str
    """The first name that it imports from the module; none where it imports the module itself."""


def _straight_first(line: NewLine) -> _Key:
    return bool(line.member), line.module.lower(), _by_kind(line.member)


def _by_module(line: NewLine) -> _Key:
    return line.module.lower(), bool(line.member), _by_kind(line.member)


def _described(statement: ImportStatement) -> NewLine:
    first = statement.names[0].name
    if isinstance(statement, ast.Import):
        return NewLine("", first, "")
    return NewLine("", ("~" * statement.level) + (statement.module or ""), first)


def block_around(source: Source, statement: ImportStatement, own: Collection[ImportStatement]) -> list[ImportStatement]:
    """The imports of a module that stand with this one, without a blank line or other code between them.

    ``own`` are imports of the repository's own modules: they form a block apart, also where no line divides them.
    """
    body = source.tree.body
    start = end = body.index(statement)
    while start and body[start - 1] not in own and _next_to(source, body[start - 1], body[start]):
        start -= 1
    while end + 1 < len(body) and body[end + 1] not in own and _next_to(source, body[end], body[end + 1]):
        end += 1
    return [node for node in body[start : end + 1] if isinstance(node, (ast.Import, ast.ImportFrom))]


def _next_to(source: Source, first: ast.stmt, second: ast.stmt) -> bool:
    if not all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in (first, second)):
        return False
    between = source.text[source.span(first)[1] : source.span(second)[0]]
    return ";" not in between.partition("#")[0] and all(line.strip() for line in between.split("\n")[1:-1])


def _order_of(block: Sequence[ImportStatement]) -> Callable[[NewLine], _Key] | None:
    """What the statements of a block are sorted by, None where they are in no order."""
    lines = [_described(statement) for statement in block]
    for key in (_straight_first, _by_module):
        if all(key(first) <= key(second) for first, second in pairwise(lines)):
            return key
    return None


def stays_in_order(block: Sequence[ImportStatement], statement: ast.ImportFrom, names: Sequence[str]) -> bool:
    """Whether a statement may take these names without being out of its place in its block."""
    key = _order_of(block)
    before = block.index(statement) - 1
    if key is None or before < 0:
        return True
    joined = _described(statement)
    member = ordered_names([alias.name for alias in statement.names], names)[0]
    return key(_described(block[before])) <= key(NewLine("", joined.module, member))


def offset_in(source: Source, block: Sequence[ImportStatement], line: NewLine) -> int | None:
    """Where a new line belongs in a sorted block, None in one that is in no order."""
    key = _order_of(block)
    if key is None:
        return None
    before = [statement for statement in block if key(_described(statement)) <= key(line)]
    return line_after(source, before[-1]) if before else source.line_starts[block[0].lineno - 1]


def line_after(source: Source, statement: ast.stmt) -> int:
    """Offset of the line after a statement."""
    line = statement.end_lineno or statement.lineno
    return source.line_starts[line] if line < len(source.line_starts) else len(source.text)


def in_order(block: Sequence[ImportStatement], lines: list[NewLine]) -> list[NewLine]:
    """New lines in the order of a block, by module where it has none."""
    return sorted(lines, key=_order_of(block) or _by_module)


def first_import_offset(source: Source) -> int:
    """Where the first import of a file without imports goes: behind its docstring and what heads the file."""
    body = source.tree.body
    if not body:
        return 0
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        return line_after(source, body[0])
    line = min([body[0].lineno, *(d.lineno for d in getattr(body[0], "decorator_list", []))]) - 1
    above = line
    while above and source.text[source.line_starts[above - 1] :].lstrip(" \t").startswith("#"):
        above -= 1
    return source.line_starts[above or line]


def lines_apart(source: Source, offset: int) -> tuple[str, str]:
    """The blank lines that imports need in front and behind, in a file that had none."""
    before, after = source.text[:offset], source.text[offset:]
    rest = after.lstrip("\r\n")
    there = after[: len(after) - len(rest)].count("\n")
    code = next((line for line in rest.splitlines() if not line.startswith("#")), "")
    wanted = 2 if code.startswith(("def ", "class ", "async def ", "@")) else 1
    front = "\n" if before.strip() and not before.endswith(("\n\n", "\r\n\r\n")) else ""
    return front, "\n" * max(wanted - there, 0) if rest else ""
