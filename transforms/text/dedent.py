"""Taking a block out of the statement around it: the header goes, the body moves one level to the left."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ..view import FileView
from .patches import Old, Part, Patch

_GOES_ON = ('"""', "'''", "\\\n", "\\\r\n")
Block = ast.With | ast.AsyncWith | ast.If | ast.Try


def unwrapped(
    view: FileView, statement: Block, why: str, before: Sequence[Part] = (), after: Sequence[Part] = ()
) -> Patch:
    """Replaces a compound statement by its body; patches inside the body apply.

    ``before`` and ``after`` are put around the body at the statement's own indentation; each ends with a newline.
    A comment on the header line and comments above the first statement stay.
    """
    source = view.source
    start = view.line_start(statement)
    indent = view.indent(statement)
    parts: list[Part] = [*before]
    body = source.span(statement.body[0])[0]
    first_line = source.line_starts[source.position(body)[0] - 1]
    if source.text[first_line:body].strip():
        parts.extend((indent, Old(body, _end(view, statement), indent)))  # with x: body, on one line
    else:
        header = source.text[_header_end(view, statement) : first_line]
        parts.extend(f"{indent}{line.strip()}\n" for line in header.splitlines() if line.strip())
        parts.append(Old(first_line, _end(view, statement), indent))
    parts.extend(after)
    return Patch(view.path, start, _end(view, statement), tuple(parts), why)


def can_unwrap(view: FileView, statement: Block) -> bool:
    """Whether a body can be moved as it stands: a string over several lines would change with its indentation."""
    if not view.stands_alone(statement):
        return False
    return not any(holds_long_strings(view, child) for child in statement.body)


def holds_long_strings(view: FileView, statement: ast.stmt) -> bool:
    """Whether a string that goes on over a line's end stands in a statement (not several strings in a row)."""
    return any(
        isinstance(node, (ast.Constant, ast.JoinedStr))
        and node.end_lineno != node.lineno
        and (isinstance(node, ast.JoinedStr) or isinstance(node.value, (str, bytes)))
        and any(mark in view.text(node) for mark in _GOES_ON)
        for node in ast.walk(statement)
    )


def _header_end(view: FileView, statement: Block) -> int:
    """Offset just past the colon of a compound statement's header."""
    source = view.source
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        last = statement.items[-1].optional_vars or statement.items[-1].context_expr
        reached = source.span(last)[1]
    elif isinstance(statement, ast.If):
        reached = source.span(statement.test)[1]
    else:
        reached = source.span(statement)[0]
    while source.text[reached] != ":":
        if source.text[reached] == "#":
            reached = source.text.index("\n", reached)
        reached += 1
    return reached + 1


def _end(view: FileView, statement: Block) -> int:
    """Offset past the statement's last line: trailing comments of that line belong to the body."""
    return view.line_end(statement.body[-1])


def unwraps(view: FileView, node: ast.AST) -> int:
    """How many columns a place moves left because ``with …state_dict_type(…):`` statements around it go."""
    steps = 0
    for ancestor in view.ancestors(node):
        if isinstance(ancestor, (ast.With, ast.AsyncWith)) and len(ancestor.items) == 1:
            call = ancestor.items[0].context_expr
            called = call.func if isinstance(call, ast.Call) else None
            if isinstance(called, ast.Attribute) and called.attr == "state_dict_type":
                steps += len(view.indent(ancestor.body[0])) - len(view.indent(ancestor))
    return steps
