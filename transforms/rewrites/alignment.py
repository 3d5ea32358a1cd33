"""Arguments on lines of their own, below the first one: they move with the parenthesis when the function's name changes."""

from __future__ import annotations

import libcst as cst

from .positions import NodeMap


def realigned(nodes: NodeMap, old: cst.Call, new: cst.Call) -> cst.Call:
    """A call whose function was replaced, with what was aligned to its opening parenthesis aligned to it again."""
    if not any(_width(arg) for arg in old.args):
        return new
    function = nodes.module.code_for_node(new.func)
    begin, end = nodes.span(old.func)
    text = nodes.source.text
    if function == text[begin:end] or "\n" in function + text[begin:end]:
        return new
    inner = new.args[0].value if len(new.args) == 1 else None
    if isinstance(inner, cst.Call) and nodes.module.code_for_node(inner.func) == text[begin:end]:  # it went into another call
        return new.with_changes(args=[new.args[0].with_changes(value=_with_moved(nodes, old, inner, len(function) + 1))])
    return _with_moved(nodes, old, new, len(function) - (end - begin))


def _with_moved(nodes: NodeMap, old: cst.Call, new: cst.Call, moved: int) -> cst.Call:
    text, end = nodes.source.text, nodes.span(old.func)[1]
    column = _column(text, end) + 1
    firsts = [_column(text, nodes.span(arg)[0]) for arg in old.args[1:]]
    aligned = {_width(arg) for arg, at in zip(old.args, firsts, strict=False) if at == column} - {None}
    return new.with_changes(args=[_moved(arg, moved) if _width(arg) in aligned else arg for arg in new.args])


def _width(arg: cst.Arg) -> int | None:
    """How far the line behind an argument is indented, more than its block; None if the next one is on the same line."""
    space = arg.comma.whitespace_after if isinstance(arg.comma, cst.Comma) else None
    return len(space.last_line.value) if isinstance(space, cst.ParenthesizedWhitespace) else None


def _moved(arg: cst.Arg, by: int) -> cst.Arg:
    comma = cst.ensure_type(arg.comma, cst.Comma)
    space = cst.ensure_type(comma.whitespace_after, cst.ParenthesizedWhitespace)
    line = cst.SimpleWhitespace(" " * max(len(space.last_line.value) + by, 0))
    return arg.with_changes(comma=comma.with_changes(whitespace_after=space.with_changes(last_line=line)))


def _column(text: str, at: int) -> int:
    return at - text.rfind("\n", 0, at) - 1
