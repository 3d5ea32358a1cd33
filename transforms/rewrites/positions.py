"""From nodes of `ast`, on which facts and sites are read, to the nodes of libcst, on which changes are made."""

from __future__ import annotations

import ast

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from ..text.source import Source

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

Span = tuple[int, int]


class NodeMap:
    """The libcst nodes of one file by the `ast` nodes that stand at the same place.

    ``source`` is parsed anew; libcst counts columns in characters, `ast` in UTF-8 bytes, so both are turned to offsets.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        # The wrapper would copy the whole tree against nodes that stand in it twice; a parsed tree has none of them.
        wrapper = MetadataWrapper(cst.parse_module(source.text), unsafe_skip_copy=True)
        self.module = wrapper.module
        # libcst ends the last line too, where the text does not.
        self._lines = [*cst_line_starts(source.text), len(source.text)]
        self._by_span: dict[Span, list[cst.CSTNode]] = {}
        self._places = places = wrapper.resolve(PositionProvider)
        for node, place in places.items():
            self._by_span.setdefault(self._span(place), []).append(node)
            if isinstance(node, _IN_PARENTHESES) and node.lpar:
                # For libcst the outer parentheses of an expression never belong to it, for `ast` those of these do.
                for left, right in zip(reversed(node.lpar), node.rpar, strict=True):
                    span = self._span(places[left])[0], self._span(places[right])[1]
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
        return self._span(self._places[node])

    def _span(self, place: CodeRange) -> Span:
        return (
            self._lines[place.start.line - 1] + place.start.column,
            self._lines[place.end.line - 1] + place.end.column,
        )


def cst_line_starts(text: str) -> list[int]:
    """Offset of each line as libcst counts lines, which end with ``\\n``, ``\\r\\n`` or ``\\r``."""
    starts, position = [0], 0
    while position < len(text):
        char = text[position]
        position += 2 if text.startswith("\r\n", position) else 1
        if char in "\r\n":
            starts.append(position)
    return starts

