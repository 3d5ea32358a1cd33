"""All changes of a file in one pass over its libcst tree, from the inside out."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

import libcst as cst

from ..text.source import Source
from .alignment import realigned
from .changes import Change, Statement, Where
from .idle_tests import asks_only, does_the_same, gives_the_same, repeats
from .positions import NodeMap
from .printed import Printed


def apply_changes(source: Source, changes: Sequence[Change]) -> tuple[Printed, cst.Module]:
    """The text of a file as libcst prints it, and its tree with all changes made, those of one node in the order given."""
    nodes = NodeMap(source)
    made = _OnePass(nodes, changes)
    changed = nodes.module.visit(made)
    return nodes.printed, changed.visit(_LostComments(_comments(nodes.module))) if made.marks else changed


class _OnePass(cst.CSTTransformer):
    def __init__(self, nodes: NodeMap, changes: Sequence[Change]) -> None:
        super().__init__()
        source = nodes.source
        self.replaced: dict[cst.CSTNode, list[Change]] = {}
        self.around: dict[cst.CSTNode, list[Change]] = {}
        """Changes of whole statements: by the small statement, or by the compound one."""
        self._elifs: set[cst.CSTNode] = set()
        self._in_front: dict[cst.CSTNode, cst.CSTNode] = {}
        """The statement that stands in front of another one in the same block."""
        self.marks = False
        """Whether comments that may be lost were marked."""
        self._nodes = nodes
        self._starts = sorted(source.span(change.node)[0] for change in changes)
        for change in sorted(changes, key=lambda change: change.late):
            by = self.replaced if change.where is Where.REPLACE else self.around
            by.setdefault(nodes.find(change.node), []).append(change)

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Statements in which nothing changes are passed over: libcst would copy each of their nodes."""
        if isinstance(node, cst.BaseStatement) and not self._has_changes(node):
            return False
        return super().on_visit(node)

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode | cst.FlattenSentinel[cst.CSTNode]:  # type: ignore[override]
        node = super().on_leave(original_node, updated_node)
        assert isinstance(node, cst.CSTNode)
        for change in self.replaced.get(original_node, ()):
            node = change.build(node)  # type: ignore[arg-type]
            assert isinstance(node, cst.CSTNode)
        if isinstance(original_node, cst.Call) and isinstance(node, cst.Call):
            node = realigned(self._nodes, original_node, node)
        if isinstance(node, cst.FormattedString):
            node = cst.ensure_type(node.visit(_OtherQuotes(node.quote)), cst.FormattedString)
        if isinstance(original_node, cst.IfExp) and isinstance(node, cst.IfExp) and gives_the_same(original_node, node):
            return node.body.with_changes(lpar=node.lpar or node.body.lpar, rpar=node.rpar or node.body.rpar)
        if isinstance(original_node, cst.SimpleStatementLine) and isinstance(node, cst.SimpleStatementLine):
            return self._line(original_node, node)
        if isinstance(original_node, cst.SimpleStatementSuite) and isinstance(node, cst.SimpleStatementSuite):
            return self._suite(original_node, node)
        if isinstance(original_node, cst.If) and isinstance(original_node.orelse, cst.If):
            node = self._else_if(original_node.orelse, node)
        if isinstance(original_node, cst.If) and isinstance(node, cst.If) and self._is_idle(original_node, node):
            statements = [node.body.body[0].with_changes(leading_lines=node.leading_lines), *node.body.body[1:]]
            return cst.FlattenSentinel(self._marked(node, statements))  # type: ignore[arg-type]
        if isinstance(original_node, cst.If) and isinstance(node, cst.If) and self._is_repetition(original_node, node):
            return cst.RemoveFromParent()  # type: ignore[return-value]
        if isinstance(original_node, cst.BaseCompoundStatement) and original_node in self.around:
            if isinstance(original_node, cst.If) and original_node in self._elifs:
                return node
            return cst.FlattenSentinel(self._marked(node, _statements(node, self.around[original_node])))  # type: ignore[arg-type]
        return node

    def visit_If(self, node: cst.If) -> None:
        if isinstance(node.orelse, cst.If):
            self._elifs.add(node.orelse)

    def _is_idle(self, original: cst.If, new: cst.If) -> bool:
        """Whether both branches have come to do the same: ``net = model.module`` in one, ``net = model`` in the other."""
        if original in self.around or original in self._elifs or (new.body is original.body and new.orelse is original.orelse):
            return False
        return asks_only(new.test) and does_the_same(new) and not does_the_same(original)

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:
        self._in_front.update(zip(node.body[1:], node.body, strict=False))

    def _is_repetition(self, original: cst.If, new: cst.If) -> bool:
        """Whether all that a test leads to has come to be what stands in front of it: ``net = model``, and again."""
        before = self._in_front.get(original)
        if before is None or before in self.around or original in self.around or new.body is original.body:
            return False
        return asks_only(new.test) and repeats(new, before) and not self._has_changes(before)

    def _has_changes(self, statement: cst.CSTNode) -> bool:
        start, end = self._nodes.span(statement)
        index = bisect_left(self._starts, start)
        return index < len(self._starts) and self._starts[index] <= end

    def _else_if(self, original: cst.If, outer: cst.CSTNode) -> cst.CSTNode:
        """An ``elif`` that statements are put beside becomes an ``else`` with an ``if`` in it."""
        if original not in self.around or not isinstance(outer, cst.If) or not isinstance(outer.orelse, cst.If):
            return outer
        body = _statements(outer.orelse, self.around[original])
        return outer.with_changes(orelse=cst.Else(cst.IndentedBlock(body)) if body else None)

    def _line(self, original: cst.SimpleStatementLine, line: cst.SimpleStatementLine):
        changes = [self.around.get(part, []) for part in original.body]
        if not any(changes):
            if line is not original and _comments(original) - _comments(line):
                return with_comments(line, _comments(original))
            return line
        found: list[Statement] = []
        for part, own in zip(line.body, changes, strict=True):
            single = line if len(line.body) == 1 else cst.SimpleStatementLine([part.with_changes(semicolon=_NO_SEMICOLON)])
            found += _statements(single, own)
        return cst.FlattenSentinel(self._marked(line, found))

    def _suite(self, original: cst.SimpleStatementSuite, suite: cst.SimpleStatementSuite):
        changes = [self.around.get(part, []) for part in original.body]
        if not any(changes):
            return suite
        found: list[Statement] = []
        for part, own in zip(suite.body, changes, strict=True):
            found += _statements(cst.SimpleStatementLine([part.with_changes(semicolon=_NO_SEMICOLON)]), own)
        return cst.IndentedBlock(self._marked(suite, found))

    def _marked(self, old: cst.CSTNode, new: list[Statement]) -> list[Statement]:
        """New statements, with a mark in front that holds the comments of the old code that none of them holds.

        Whether a comment is lost is known only when the whole file is done: another change may have taken it along.
        """
        missing = _comments(old) - _all_comments(new)
        if not missing:
            return new
        self.marks = True
        above = [line for line in getattr(old, "leading_lines", ()) if line.comment is None or missing[line.comment.value]]
        inside = missing - Counter(line.comment.value for line in above if line.comment is not None)
        lines = [*above, *(cst.EmptyLine(comment=cst.Comment(text)) for text in inside.elements())]
        return [cst.SimpleStatementLine([cst.Expr(cst.Name(_PLACE))], leading_lines=lines), *new]


class _OtherQuotes(cst.CSTTransformer):
    """Generated strings inside of an f-string: before Python 3.12 they cannot have its quotes."""

    def __init__(self, quote: str) -> None:
        super().__init__()
        self.quote = quote

    def leave_SimpleString(self, original_node: cst.SimpleString, updated_node: cst.SimpleString) -> cst.SimpleString:
        other = "'" if self.quote == '"' else '"'
        if updated_node.quote != self.quote or other in updated_node.raw_value:
            return updated_node
        return updated_node.with_changes(value=f"{updated_node.prefix}{other}{updated_node.raw_value}{other}")


_NO_SEMICOLON = cst.MaybeSentinel.DEFAULT


def _statements(node: Statement, changes: Sequence[Change]) -> list[Statement]:
    """A statement with what was put in its place, in front of it and behind it.

    Comments above it stay above all of these.
    """
    before = [s for c in changes if c.where is Where.BEFORE for s in c.build(node)]  # type: ignore[union-attr]
    after = [s for c in changes if c.where is Where.AFTER for s in c.build(node)]  # type: ignore[union-attr]
    middle: list[Statement] = [node]
    for change in changes:
        if change.where is Where.STATEMENT:
            new = [s for statement in middle for s in change.build(statement)]  # type: ignore[union-attr]
            if new:
                new = _with_lines_above(middle, new)
            middle = new  # type: ignore[assignment]
    if before and middle:
        lines = middle[0].leading_lines
        middle[0] = middle[0].with_changes(leading_lines=[])
        before[0] = before[0].with_changes(leading_lines=[*lines, *before[0].leading_lines])
    return [*before, *middle, *after]


def _with_lines_above(old: Sequence[Statement], new: Sequence[cst.CSTNode]) -> list[Statement]:
    """New statements with the blank lines and comments of the old ones above them."""
    first, *rest = new
    assert isinstance(first, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
    if not first.leading_lines:
        held = _all_comments(new)
        lines = [line for line in old[0].leading_lines if line.comment is None or not held[line.comment.value]]
        first = first.with_changes(leading_lines=lines)
    return [first, *rest]  # type: ignore[list-item]


_PLACE = "__comments_of_what_was_here__"


class _LostComments(cst.CSTTransformer):
    """Comments that are nowhere any more go above the statement that follows their place; the marks go."""

    def __init__(self, wanted: Counter[str]) -> None:
        super().__init__()
        self.lost = wanted

    def visit_Module(self, node: cst.Module) -> None:
        there = _comments(node)
        for mark in _marks_in(node):
            there -= _comments(mark)
        self.lost = self.lost - there

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> cst.IndentedBlock:
        body, rest = self._without_marks(updated_node.body)
        return updated_node.with_changes(body=body, footer=[*rest, *updated_node.footer])

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        body, rest = self._without_marks(updated_node.body)
        return updated_node.with_changes(body=body, footer=[*rest, *updated_node.footer])

    def _without_marks(self, body: Sequence[cst.BaseStatement]) -> tuple[list[cst.BaseStatement], list[cst.EmptyLine]]:
        kept: list[cst.BaseStatement] = []
        lines: list[cst.EmptyLine] = []
        for statement in body:
            if _is_mark(statement):
                lines += self._lost(statement.leading_lines)  # type: ignore[attr-defined]
            else:
                if lines:
                    above = statement.leading_lines  # type: ignore[attr-defined]
                    statement = statement.with_changes(leading_lines=[*lines, *above])
                    lines = []
                kept.append(statement)
        return kept, lines

    def _lost(self, lines: Sequence[cst.EmptyLine]) -> Iterator[cst.EmptyLine]:
        """The lines of lost comments, with the blank ones above each."""
        blank: list[cst.EmptyLine] = []
        for line in lines:
            if line.comment is None:
                blank.append(line)
                continue
            self.lost[line.comment.value] -= 1
            if self.lost[line.comment.value] >= 0:
                yield from (*blank, line)
            blank = []


def _is_mark(statement: cst.CSTNode) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return False
    expression = statement.body[0]
    return isinstance(expression, cst.Expr) and isinstance(expression.value, cst.Name) and expression.value.value == _PLACE


def _marks_in(module: cst.Module) -> list[cst.SimpleStatementLine]:
    collector = _Marks()
    module.visit(collector)
    return collector.found


class _Marks(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[cst.SimpleStatementLine] = []

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> bool:
        if _is_mark(node):
            self.found.append(node)
        return False


def with_comments(statement: Statement, wanted: Counter[str]) -> Statement:
    """The statement with those comments as lines above it that it does not hold already."""
    missing = list((wanted - _comments(statement)).elements())
    lines = [cst.EmptyLine(comment=cst.Comment(text)) for text in missing]
    return statement.with_changes(leading_lines=[*statement.leading_lines, *lines])


def _all_comments(nodes: Sequence[cst.CSTNode]) -> Counter[str]:
    found: Counter[str] = Counter()
    for node in nodes:
        found += _comments(node)
    return found


def _comments(node: cst.CSTNode) -> Counter[str]:
    collector = _Comments()
    node.visit(collector)
    return collector.found


class _Comments(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def visit_Comment(self, node: cst.Comment) -> None:
        self.found[node.value] += 1

