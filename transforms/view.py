"""One file as the rules see it: its tree with parents, and the values that the analysis found for its nodes."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, TypeVar, cast

from .analysis.facts import NOTHING
from .analysis.scopes import dotted_path
from .analysis.symbols import canonical
from .analysis.trees import children, walk
from .analysis.values import External, Value
from .text.patches import Old, Part, Patch, old
from .text.source import Source

if TYPE_CHECKING:
    from .program import Program

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Node = TypeVar("Node", bound=ast.AST)
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


class FileView:
    """A file that holds sites; made on demand, since most files of a repository hold none."""

    def __init__(self, program: Program, index: int, source: Source) -> None:
        self.program = program
        self.index = index
        self.source = source
        self.path = source.path
        self.tree = source.tree
        facts = program.files[index]
        self._walked = walk(source.tree)
        self._nodes: dict[tuple[type[ast.AST], ...], Sequence[ast.AST]] = {}
        self._variables = _numbered(self._walked, facts.of_nodes)
        self._call_index = _numbered(self.nodes(ast.Call), facts.of_calls)
        self._stores: dict[ast.AST, dict[str, list[ast.Name]]] = {}
        self._generated: dict[ast.AST, dict[ast.AST, str]] = {}

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in self._walked for child in children(node)}

    def nodes(self, *kinds: type[Node]) -> list[Node]:
        """All nodes of these types, in the order of ``ast.walk``: the file is walked once for all rules."""
        if kinds not in self._nodes:
            self._nodes[kinds] = [node for node in self._walked if isinstance(node, kinds)]
        return cast("list[Node]", self._nodes[kinds])

    def stores(self, scope: ast.AST) -> dict[str, list[ast.Name]]:
        """Where each name is assigned in a function, or in functions inside it."""
        if scope not in self._stores:
            found = self._stores[scope] = {}
            for node in walk(scope):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    found.setdefault(node.id, []).append(node)
        return self._stores[scope]

    @cached_property
    def own_names(self) -> set[str]:
        """Names that the file binds by anything but an import."""
        assigned = {node.id for node in self.nodes(ast.Name) if isinstance(node.ctx, ast.Store)}
        return assigned | {node.name for node in self.nodes(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)}

    @cached_property
    def calls_by_index(self) -> dict[int, ast.Call]:
        return {index: node for node, index in self._call_index.items()}

    # --- values -------------------------------------------------------------------------------------------

    def variable(self, node: ast.AST) -> int:
        """The analysis variable of an expression, a bound name, an import alias, a parameter or a definition."""
        local = self._variables.get(node, NOTHING)
        return NOTHING if local == NOTHING else local + self.program.flow.variable_offsets[self.index]

    def values(self, node: ast.AST) -> list[Value]:
        """What an expression may evaluate to; empty when the analysis knows nothing."""
        return self.program.flow.values_of(self.variable(node))

    def external(self, node: ast.AST) -> str | None:
        """The canonical name of the outside symbol that an expression refers to, if it is surely one."""
        values = self.values(node)
        names = {value.name for value in values if isinstance(value, External)}
        if not values and isinstance(node, ast.Attribute):
            # The function of a method call has no variable of its own.
            owner = self.external(node.value)
            return canonical(f"{owner}.{node.attr}") if owner is not None else None
        return names.pop() if len(names) == 1 else None

    def call_site(self, node: ast.Call) -> int:
        """The number of a call over the whole repository; -1 when it lies in dead code."""
        index = self._call_index.get(node)
        return -1 if index is None else index + self.program.flow.call_offsets[self.index]

    # --- structure ----------------------------------------------------------------------------------------

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, innermost first."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that holds a node (the node itself if it is one)."""
        current = node
        while not isinstance(current, ast.stmt):
            current = self.parents[current]
        return current

    def block_of(self, statement: ast.stmt) -> tuple[list[ast.stmt], int]:
        """The list of statements that a statement stands in, and its place there."""
        parent = self.parents[statement]
        for name in _BODIES:
            body = getattr(parent, name, None)
            if isinstance(body, list) and statement in body:
                return body, body.index(statement)
        raise ValueError("a statement always stands in a block")

    def function(self, node: ast.AST) -> FunctionNode | None:
        """The innermost function around a node, None at module or class level."""
        for ancestor in self.ancestors(node):
            if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                return ancestor
        return None

    def enclosing_class(self, node: ast.AST) -> ast.ClassDef | None:
        """The innermost class around a node."""
        return next((a for a in self.ancestors(node) if isinstance(a, ast.ClassDef)), None)

    def is_dead(self, node: ast.AST) -> bool:
        """Whether control can never reach an expression (code after a return)."""
        return isinstance(node, ast.Call) and node not in self._call_index

    # --- text ---------------------------------------------------------------------------------------------

    def text(self, node: ast.AST) -> str:
        """The source text of a node."""
        return self.source.segment(node)

    def line(self, node: ast.AST) -> int:
        return node.lineno  # pyright: ignore[reportAttributeAccessIssue]

    def indent(self, node: ast.AST) -> str:
        """The indentation of the statement that holds a node."""
        return self.source.indent_at(self.source.span(self.statement(node))[0])

    def keep(self, node: ast.AST, indent: str | None = None) -> Old:
        """The text of a node as a part of a patch, with the patches inside it applied."""
        return old(self.source, node, indent)

    def replace(self, node: ast.AST, parts: str | Sequence[Part], why: str) -> Patch:
        """Replaces a node."""
        start, end = self.source.span(node)
        return Patch(self.path, start, end, (parts,) if isinstance(parts, str) else tuple(parts), why)

    def insert_before(self, statement: ast.stmt, parts: str | Sequence[Part], why: str) -> Patch:
        """Inserts whole lines before a statement (and its decorators); the parts hold indentation and newlines."""
        start = self.line_start(statement)
        return Patch(self.path, start, start, (parts,) if isinstance(parts, str) else tuple(parts), why)

    def insert_after(self, statement: ast.stmt, parts: str | Sequence[Part], why: str) -> Patch:
        """Inserts whole lines after the last line of a statement; the parts hold indentation and newlines.

        The place is before that line's own newline, so that it is never also the place before the next statement.
        """
        end = self.line_end(statement)
        while end and self.source.text[end - 1] in "\r\n":
            end -= 1
        texts = [parts] if isinstance(parts, str) else list(parts)
        if texts and isinstance(texts[-1], str):
            texts[-1] = texts[-1].removesuffix("\n")
        return Patch(self.path, end, end, ("\n", *texts), why)

    def delete(self, statement: ast.stmt, why: str) -> Patch:
        """Removes a statement with its lines; the caller sees to it that its block does not become empty."""
        return Patch(self.path, self.line_start(statement), self.line_end(statement), (), why)

    def line_start(self, statement: ast.stmt) -> int:
        """Offset of the first character of the line that a statement (or its first decorator) starts on."""
        first: ast.AST = statement
        decorators = getattr(statement, "decorator_list", None)
        if decorators:
            first = decorators[0]
        start = self.source.span(first)[0]
        line, _ = self.source.position(start)
        return self.source.line_starts[line - 1]

    def line_end(self, statement: ast.stmt) -> int:
        """Offset just past the newline of a statement's last line."""
        line = statement.end_lineno or statement.lineno
        starts = self.source.line_starts
        return starts[line] if line < len(starts) else len(self.source.text)

    def stands_alone(self, statement: ast.stmt) -> bool:
        """Whether no other statement shares the lines of this one (``a; b`` and ``if x: a`` do)."""
        before = self.source.text[self.line_start(statement) : self.source.span(statement)[0]]
        after = self.source.text[self.source.span(statement)[1] : self.line_end(statement)].strip()
        return not before.strip() and (not after or after.startswith("#"))

    def names_in(self, node: ast.AST) -> set[str]:
        """The names that an expression or statement reads or binds."""
        return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}

    def free_name(self, node: ast.AST, wanted: str, given: Collection[str] = ()) -> str:
        """``wanted``, or a variant that nothing in the function around a node uses yet, nor is ``given`` already."""
        scope = self.function(node) or self.tree
        taken = self.names_in(scope) | {a.arg for a in ast.walk(scope) if isinstance(a, ast.arg)}
        candidates = (f"{wanted}_{n}" if n > 1 else wanted for n in count(1))
        return next(name for name in candidates if name not in taken and name not in given)

    def generated_name(self, node: ast.AST, wanted: str, place: ast.AST | None = None) -> str:
        """A free name for what is generated in front of a node's statement.

        Nothing else that is generated there gets it: in the function around it, or in a smaller ``place``.
        """
        statement = self.statement(node)
        given = self._generated.setdefault(place or self.function(statement) or self.tree, {})
        if node not in given:
            given[node] = self.free_name(statement, wanted, given.values())
        return given[node]


def _numbered(nodes: Iterable[Node], numbers: Iterable[int]) -> dict[Node, int]:
    """The numbers of nodes, for those that have one."""
    return {node: number for node, number in zip(nodes, numbers, strict=True) if number != NOTHING}


def path_of(node: ast.expr) -> str | None:
    """``a.b.c`` for a chain of attributes on a name."""
    return dotted_path(node)
