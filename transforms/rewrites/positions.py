"""From nodes of `ast`, on which facts and sites are read, to the nodes of libcst, on which changes are made."""

from __future__ import annotations

import ast
from bisect import bisect_right
from collections.abc import Callable

import libcst as cst

from ..text.source import Source
from .printed import Printed, Span

_KINDS: dict[type[ast.AST], tuple[type[cst.CSTNode], ...]] = {
    ast.Call: (cst.Call,),
    ast.Attribute: (cst.Attribute,),
    ast.Name: (cst.Name,),
    ast.keyword: (cst.Arg,),
    ast.Starred: (cst.Arg, cst.StarredElement),
    ast.Constant: (cst.SimpleString, cst.ConcatenatedString, cst.Integer, cst.Float, cst.Imaginary, cst.Name, cst.Ellipsis),
    ast.JoinedStr: (cst.FormattedString, cst.ConcatenatedString),
    ast.Subscript: (cst.Subscript,),
    ast.Lambda: (cst.Lambda,),
    ast.IfExp: (cst.IfExp,),
    ast.Compare: (cst.Comparison,),
    ast.BoolOp: (cst.BooleanOperation,),
    ast.BinOp: (cst.BinaryOperation,),
    ast.UnaryOp: (cst.UnaryOperation,),
    ast.Tuple: (cst.Tuple,),
    ast.List: (cst.List,),
    ast.Dict: (cst.Dict,),
    ast.Set: (cst.Set,),
    ast.ListComp: (cst.ListComp,),
    ast.SetComp: (cst.SetComp,),
    ast.DictComp: (cst.DictComp,),
    ast.GeneratorExp: (cst.GeneratorExp,),
    ast.NamedExpr: (cst.NamedExpr,),
    ast.Await: (cst.Await,),
    ast.alias: (cst.ImportAlias,),
    ast.arg: (cst.Param,),
    ast.withitem: (cst.WithItem,),
    ast.ExceptHandler: (cst.ExceptHandler,),
    ast.FunctionDef: (cst.FunctionDef,),
    ast.AsyncFunctionDef: (cst.FunctionDef,),
    ast.ClassDef: (cst.ClassDef,),
    ast.With: (cst.With,),
    ast.AsyncWith: (cst.With,),
    ast.For: (cst.For,),
    ast.AsyncFor: (cst.For,),
    ast.While: (cst.While,),
    ast.If: (cst.If,),
    ast.Try: (cst.Try,),
    ast.Match: (cst.Match,),
}
_IN_PARENTHESES = (cst.Tuple, cst.GeneratorExp)


class NodeMap:
    """The libcst nodes of one file by the `ast` nodes that stand at the same place.

    ``source`` is parsed anew; `ast` counts columns in UTF-8 bytes, so all is turned to offsets of characters.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.module = cst.parse_module(source.text)
        self.printed = Printed(self.module)
        self._by_span: dict[Span, list[cst.CSTNode]] = {}
        self._places = places = self.printed.spans
        if self.printed.text != source.text:
            in_text = _offsets_in(source.text, self.printed.text)
            self._places = places = {node: (in_text(start), in_text(end)) for node, (start, end) in places.items()}
        for node, place in places.items():
            self._by_span.setdefault(place, []).append(node)
            if isinstance(node, _IN_PARENTHESES) and node.lpar:
                # For libcst the outer parentheses of an expression never belong to it, for `ast` those of these do.
                for left, right in zip(reversed(node.lpar), node.rpar, strict=True):
                    span = places[left][0], places[right][1]
                    self._by_span.setdefault(span, []).append(node)

    def find(self, node: ast.AST) -> cst.CSTNode:
        """The libcst node of an `ast` node; KeyError if there is none, which no file is known to bring about."""
        kinds = _KINDS.get(type(node))
        start, end = self.source.span(node)
        if kinds is None and isinstance(node, ast.stmt):
            kinds = (cst.BaseSmallStatement,)
        spans = [(start, end)]
        if isinstance(node, ast.GeneratorExp):
            # The only argument of a call has the call's parentheses.
            inside = self.source.text[start + 1 : end - 1]
            spans.append((end - 1 - len(inside.lstrip()), start + 1 + len(inside.rstrip())))
        for found in (found for span in spans for found in self._by_span.get(span, ())):
            if kinds is None or isinstance(found, kinds):
                return found
        raise KeyError(f"{self.source.path}:{getattr(node, 'lineno', 0)}: no {type(node).__name__} at {start}")

    def span(self, node: cst.CSTNode) -> Span:
        """Where a libcst node begins and ends, in characters."""
        return self._places[node]


def _offsets_in(text: str, printed: str) -> Callable[[int], int]:
    """From offsets in what libcst prints of a text to those in the text: lines are the same, line ends may not be."""
    # libcst ends the last line too, where the text does not.
    starts, places = [*cst_line_starts(text), len(text)], cst_line_starts(printed)

    def offset(at: int) -> int:
        line = bisect_right(places, at) - 1
        return starts[line] + at - places[line]

    return offset


def cst_line_starts(text: str) -> list[int]:
    """Offset of each line as libcst counts lines, which end with ``\\n``, ``\\r\\n`` or ``\\r``."""
    starts, position = [0], 0
    while position < len(text):
        char = text[position]
        position += 2 if text.startswith("\r\n", position) else 1
        if char in "\r\n":
            starts.append(position)
    return starts

