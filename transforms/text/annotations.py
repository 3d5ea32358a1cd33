"""Comments at the sites that are left to a person: `# TODO(to-fsdp2: FS402) what is to be done`."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..findings import Finding, Level
from .edits import Edit
from .source import Source


def annotation_edits(source: Source, findings: Iterable[Finding], edits: Iterable[Edit]) -> list[Edit]:
    """One comment above the statement of every manual finding that is not suppressed.

    A comment that stands there already is not written again. `edits` are those of the file; a comment never lands
    inside a stretch of text that one of them replaces.
    """
    replaced = [(edit.start, edit.end) for edit in edits]
    wanted: dict[tuple[int, str], None] = {}
    for finding in findings:
        if finding.level is Level.MANUAL and not finding.suppressed:
            place = _line_start(source, _statement_line(source, finding.line))
            place = next((start for start, end in replaced if start < place < end), place)
            wanted[place, f"# TODO(to-fsdp2: {finding.rule}) {_one_line(finding.message)}"] = None
    return [
        Edit(place, place, f"{source.indent_at(place)}{comment}\n", "annotate")
        for place, comment in wanted
        if comment not in _comments_above(source, place)
    ]


def _statement_line(source: Source, line: int) -> int:
    """The first line of the innermost statement at `line` whose line it is: no other statement stands before it."""
    best = line
    for node in _statements_at(source.tree, line):
        first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
        before = source.lines[first - 1].encode()[: node.col_offset] if first == node.lineno else b""
        if not before.strip():
            best = first
        elif first != line:
            best = _statement_line(source, first)
    return best


def _statements_at(node: ast.AST, line: int) -> Iterator[ast.stmt]:
    """Statements that cover a line, from the outermost to the innermost."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            first = min([child.lineno, *(d.lineno for d in getattr(child, "decorator_list", []))])
            if not first <= line <= (child.end_lineno or child.lineno):
                continue
            yield child
        yield from _statements_at(child, line)


def _line_start(source: Source, line: int) -> int:
    return source.line_starts[line - 1]


def _comments_above(source: Source, place: int) -> list[str]:
    """The comment lines that stand directly above a line."""
    line, _ = source.position(place)
    found: list[str] = []
    while line > 1 and source.lines[line - 2].lstrip().startswith("#"):
        line -= 1
        found.append(source.lines[line - 1].strip())
    return found


def _one_line(text: str) -> str:
    return " ".join(text.split())
