"""Which of two places runs first: within a function by the text, across functions through their callers."""

from __future__ import annotations

import ast

from .program import Program
from .view import FileView

Place = tuple[FileView, ast.AST]
_DEEPEST = 12


class Order:
    """Answers whether a place always runs before another one, once for every run of the program."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def relation(self, first: Place, second: Place) -> str:
        """``before``, ``after``, ``both`` (ways to run it differ, or a loop holds both) or ``unknown``."""
        answers: set[str] = set()
        chains = self._chains(first)
        for scope, mine in chains.items():
            theirs = self._chains(second).get(scope)
            if theirs is None:
                continue
            if any(a is b for a in mine for b in theirs):
                continue
            view = scope[0]
            for a in mine:
                for b in theirs:
                    answers.add(self._within(view, a, b))
        answers.discard("unknown")
        if not answers:
            return "unknown"
        return answers.pop() if len(answers) == 1 else "both"

    def meetings(self, first: Place, second: Place) -> list[tuple[FileView, ast.AST, ast.AST]]:
        """The functions in which both places are reached, and through which nodes of each."""
        theirs = self._chains(second)
        return [
            (scope[0], a, b)
            for scope, mine in self._chains(first).items()
            for a in mine
            for b in theirs.get(scope, ())
            if a is not b and not any(a is other for other in theirs[scope])
        ]

    def functions_to(self, place: Place) -> set[Place]:
        """The functions (and modules) through which a place is reached."""
        return set(self._chains(place))

    def _chains(self, place: Place) -> dict[tuple[FileView, ast.AST], list[ast.AST]]:
        """For each function on a way to the place: the nodes in it through which the place is reached."""
        found: dict[tuple[FileView, ast.AST], list[ast.AST]] = {}
        pending: list[tuple[FileView, ast.AST, int]] = [(*place, 0)]
        while pending:
            view, node, depth = pending.pop()
            scope = view.function(node)
            key = (view, scope or view.tree)
            nodes = found.setdefault(key, [])
            if node in nodes:
                continue
            nodes.append(node)
            if scope is None or depth > _DEEPEST:
                continue
            for caller_view, call in self.program.callers(view, scope):
                pending.append((caller_view, call, depth + 1))
            if not self.program.callers(view, scope) and view.function(scope) is not None:
                pending.append((view, scope, depth + 1))
        return found

    def _within(self, view: FileView, first: ast.AST, second: ast.AST) -> str:
        """Two nodes of one function. Alternatives of one ``if`` never both run; a shared loop repeats."""
        mine = [first, *view.ancestors(first)]
        theirs = [second, *view.ancestors(second)]
        common = next(node for node in mine if node in theirs)
        if common is first or common is second:
            # The arguments of a call run before the call itself.
            return "after" if common is first else "before"
        one, other = mine[mine.index(common) - 1], theirs[theirs.index(common) - 1]
        tested = isinstance(common, ast.If) and common.test in (one, other)
        if isinstance(common, ast.If) and not tested and (one in common.body) != (other in common.body):
            return "unknown"
        position, against = _start(one), _start(other)
        if position == against:
            return "unknown"
        return "before" if position < against else "after"


def _start(node: ast.AST) -> tuple[int, int]:
    return (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
