"""Text of generated calls: on one line where it fits, else in hanging lines, at the place where it will stand."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ..view import FileView
from .patches import Part, Patch

LINE_LENGTH = 100
HANGING_LENGTH = 110
"""A hanging line may be a little longer than a whole statement, before its arguments go on lines of their own."""
STEP = "    "


def length(parts: Sequence[Part]) -> int:
    """Characters of parts, patches inside kept text not counted."""
    return sum(len(part) if isinstance(part, str) else part.end - part.start for part in parts)


def call_text(
    name: str, arguments: Sequence[Sequence[Part]], indent: str, before: int = 0, after: int = 0
) -> tuple[Part, ...]:
    """``name(arguments)``. ``before`` and ``after`` count the characters that share its first and last line."""
    joined = _join(arguments)
    if before + len(name) + 2 + length(joined) + after <= LINE_LENGTH and not _spans_lines(joined):
        return (f"{name}(", *joined, ")")
    inner = indent + STEP
    if len(inner) + length(joined) <= HANGING_LENGTH:
        return (f"{name}(\n{inner}", *joined, f"\n{indent})")
    lines: list[Part] = [f"{name}(\n"]
    for argument in arguments:
        lines.extend((inner, *argument, ",\n"))
    return (*lines, f"{indent})")


def replaced_call(
    view: FileView,
    node: ast.AST,
    name: str,
    arguments: Sequence[Sequence[Part]],
    dedent: int = 0,
    wrap: tuple[str, str] = ("", ""),
) -> tuple[Part, ...]:
    """A call that takes the place of ``node``, with ``wrap`` around it; its line will move left by ``dedent``."""
    source = view.source
    start, end = source.span(node)
    before = start - source.line_starts[source.position(start)[0] - 1] - dedent + len(wrap[0])
    rest = source.line_of(end)[source.position(end)[1] - 1 :].rstrip().partition("  #")[0]
    parts = call_text(name, arguments, source.indent_at(start), before, len(rest) + len(wrap[1]))
    return tuple(part for part in (wrap[0], *parts, wrap[1]) if part != "")


def removed(view: FileView, statement: ast.stmt, why: str) -> Patch:
    """Takes a statement out; ``pass`` stays where its block would be empty."""
    block, _ = view.block_of(statement)
    if len(block) == 1 or not view.stands_alone(statement):
        return view.replace(statement, "pass", why)
    return view.delete(statement, why)


def _join(arguments: Sequence[Sequence[Part]]) -> list[Part]:
    joined: list[Part] = []
    for number, argument in enumerate(arguments):
        if number:
            joined.append(", ")
        joined.extend(argument)
    return joined


def _spans_lines(parts: Sequence[Part]) -> bool:
    return any(isinstance(part, str) and "\n" in part for part in parts)

