"""Rank guards: conditions that only some ranks pass, and what runs behind them.

Under FSDP1 and FSDP2 forwards and the gathering of state are collective: behind such a guard they hang or, with
sharded tensors, save a fraction of the model.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..analysis.values import FunctionValue
from ..program import Program
from ..view import FileView
from .conditions import RankConditions, last_name


@dataclass(frozen=True, eq=False)
class Guard:
    """A condition around a place that only some ranks pass."""

    view: FileView
    statement: ast.stmt
    """What code in front of the guard has to be inserted before."""
    test: ast.expr | None
    """The condition; None for a decorator."""
    kind: str
    """``if``, ``exit`` (``if rank != 0: return``), ``expression``, ``decorator``, or ``deferred``: a thread or the like."""
    negated: bool = False
    """Whether the place runs where the condition is false."""


class GuardFinder:
    """Answers which rank guards stand around a place."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.conditions = RankConditions(program)
        self._around: dict[ast.AST, list[Guard]] = {}
        self._callers: dict[ast.AST, Guard | None] = {}
        self._open: dict[ast.AST, bool] = {}

    def around(self, view: FileView, node: ast.AST) -> list[Guard]:
        """The rank guards around a place within its function, outermost first."""
        known = self._around.get(node)
        if known is None:
            known = self._around[node] = self._find(view, node)
        return known

    def _find(self, view: FileView, node: ast.AST) -> list[Guard]:
        found: list[Guard] = []
        child = node
        for ancestor in view.ancestors(node):
            guard = self._guard(view, ancestor, child)
            if guard is not None:
                found.append(guard)
            if isinstance(child, ast.stmt):
                found.extend(reversed(list(self._exits_before(view, child))))
            if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                found.extend(self._decorators(view, ancestor))
                if self.program.is_deferred(view, ancestor):
                    found.append(Guard(view, view.statement(ancestor), None, "deferred"))
                break
            child = ancestor
        return found[::-1]

    def _guard(self, view: FileView, ancestor: ast.AST, child: ast.AST) -> Guard | None:
        """The guard that ``ancestor`` is for a part of it, if it is one."""
        selects = self.conditions.selects_ranks
        if isinstance(ancestor, ast.If) and child is not ancestor.test and selects(view, ancestor.test):
            return Guard(view, top_of_chain(view, ancestor), ancestor.test, "if", child in ancestor.orelse)
        if isinstance(ancestor, ast.IfExp) and child is not ancestor.test and selects(view, ancestor.test):
            return Guard(view, view.statement(ancestor), ancestor.test, "expression", child is ancestor.orelse)
        if isinstance(ancestor, ast.BoolOp) and isinstance(child, ast.expr):
            earlier = ancestor.values[: ancestor.values.index(child)]
            test = next((value for value in earlier if selects(view, value)), None)
            if test is not None:
                return Guard(view, view.statement(ancestor), test, "expression", isinstance(ancestor.op, ast.Or))
        return None

    def _exits_before(self, view: FileView, statement: ast.stmt) -> Iterator[Guard]:
        """Guards that leave the block before a statement: ``if rank != 0: return``."""
        block, place = view.block_of(statement)
        for earlier in block[:place]:
            if not isinstance(earlier, ast.If) or earlier.orelse or not leaves(earlier.body):
                continue
            if self.conditions.selects_ranks(view, earlier.test):
                yield Guard(view, earlier, earlier.test, "exit", negated=True)

    def _decorators(self, view: FileView, function: ast.AST) -> Iterator[Guard]:
        for decorator in getattr(function, "decorator_list", ()):
            if not isinstance(function, ast.stmt):
                continue
            if self.conditions.is_decorator(decorator) or self.inside_decorator(view, decorator):
                yield Guard(view, function, None, "decorator")

    def inside_decorator(self, view: FileView, decorator: ast.expr) -> list[Guard]:
        """The guards that a decorator of the repository puts around the function it is given."""
        found: list[Guard] = []
        named = decorator.func if isinstance(decorator, ast.Call) else decorator
        for value in view.values(named):
            if not isinstance(value, FunctionValue):
                continue
            owner, node = self.program.function_node(value)
            parameters = {a.arg for a in ast.walk(node) if isinstance(a, ast.arg)}
            for call in ast.walk(node):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in parameters:
                    found.extend(self.around(owner, call))
        return found

    def callers_guarded(self, view: FileView, node: ast.AST) -> Guard | None:
        """A guard around some call, however far out, through which a place is reached."""
        function = view.function(node)
        if function is None:
            return None
        if function not in self._callers:
            self._callers[function] = None  # a function that calls itself is reached through its other callers
            for caller, call in self.program.callers(view, function):
                guards = self.around(caller, call)
                guard = guards[0] if guards else self.callers_guarded(caller, call)
                if guard is not None:
                    self._callers[function] = guard
                    break
        return self._callers[function]

    def is_reached_by_all(self, view: FileView, function: ast.AST) -> bool:
        """Whether some way to a function has no rank guard on it."""
        if function not in self._open:
            self._open[function] = False  # a function that calls itself is reached through its other callers
            callers = self.program.callers(view, function)
            self._open[function] = not callers or any(
                not self.around(caller, call) and self._is_open_around(caller, call) for caller, call in callers
            )
        return self._open[function]

    def _is_open_around(self, view: FileView, node: ast.AST) -> bool:
        function = view.function(node)
        return function is None or self.is_reached_by_all(view, function)

    def lets_only_rank_zero_to(self, view: FileView, node: ast.AST) -> bool:
        """Whether a guard around a place within its function surely keeps out every rank but the first."""
        return any(self.passes_only_rank_zero(guard) for guard in self.around(view, node))

    def passes_only_rank_zero(self, guard: Guard) -> bool:
        """Whether a guard surely keeps out every rank but the first of the world."""
        if guard.test is None:
            decorators: list[ast.expr] = getattr(guard.statement, "decorator_list", [])
            inside = [inner for decorator in decorators for inner in self.inside_decorator(guard.view, decorator)]
            return any(inner.test is not None and self.passes_only_rank_zero(inner) for inner in inside)
        return self.conditions.elsewhere(guard.view, guard.test) is guard.negated


def bound_between(view: FileView, guard: Guard, node: ast.AST) -> set[str]:
    """Names that are assigned behind a guard, before a place, or by a comprehension around it."""
    end = view.source.span(node)[0]
    start = view.source.span(guard.statement)[0]
    assigned = {
        inner.id
        for inner in ast.walk(view.function(node) or view.tree)
        if isinstance(inner, ast.Name)
        and isinstance(inner.ctx, ast.Store)
        and start <= view.source.span(inner)[0] < end
    }
    return assigned | _bound_around(view, node)


def _bound_around(view: FileView, node: ast.AST) -> set[str]:
    """Names that only exist within the comprehensions around a place."""
    found: set[str] = set()
    for ancestor in view.ancestors(node):
        if isinstance(ancestor, ast.stmt):
            break
        if isinstance(ancestor, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            found |= {
                inner.id
                for generator in ancestor.generators
                for inner in ast.walk(generator.target)
                if isinstance(inner, ast.Name)
            }
    return found


def leaves(body: list[ast.stmt]) -> bool:
    """Whether a block always leaves the block around it."""
    last = body[-1]
    if isinstance(last, (ast.Return, ast.Raise, ast.Continue, ast.Break)):
        return True
    called = last.value.func if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) else None
    return called is not None and last_name(called) in ("exit", "_exit")


def top_of_chain(view: FileView, statement: ast.If) -> ast.stmt:
    """The ``if`` that an ``elif`` belongs to."""
    current: ast.stmt = statement
    while True:
        parent = view.parents[current]
        if not (isinstance(parent, ast.If) and parent.orelse == [current] and view.text(current).startswith("elif")):
            return current
        current = parent
