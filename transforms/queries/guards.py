"""Guards: what lets only some ranks come to a place, in its function or in the functions that call it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..flow.values import ClassValue, FunctionValue, Instance
from .both_branches import is_made_on_both
from .conditions import is_rank_condition, is_rank_decorator
from .deferred_calls import deferred_by
from .early_leaves import leaves_of_some_ranks, parts_ranks
from .file import File
from .measured import leaves_some_ranks_out, lets_some_ranks_in
from .module_forwards import is_in_module, runs_in_forwards
from .packages import is_test
from .program import Program
from .uneven_loops import ends_by_own_data, is_uneven

_DEEPEST = 8
_MOST_WAYS = 32
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

Calls = tuple[tuple[File, ast.Call], ...]


@dataclass(frozen=True)
class Guard:
    """The outermost statement of a function in which only some ranks come to a place, or some more often than others.

    ``leaves`` is set where other ranks leave by the statement (``if rank != 0: return``); ``function`` is set where a
    decorator guards the whole function; ``many`` is set where more ways lead from it to a place than are told apart;
    ``deferred`` where the statement hands a function to a thread or to a signal, and each rank runs it when it comes to that.
    """

    file: File
    statement: ast.stmt
    leaves: bool = False
    function: bool = False
    many: bool = False
    deferred: bool = False


def guard_of(file: File, node: ast.AST, asked: frozenset[ast.AST] = frozenset(), measured: bool = False) -> Guard | None:
    """The outermost guard around a place in its own function; the decorators of those `asked` for are not looked into.

    With ``measured``, tests of what ranks have measured are guards too. Inside of forwards nothing is one: units gather what
    they compute with, and nothing could be held in the middle of training.
    """
    if runs_in_forwards(file, node):
        return None
    measured = measured and not is_in_module(file, node)  # which random layers to sample, say
    found: Guard | None = None
    inside: ast.AST = node
    for around in file.ancestors(node):
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef)):
            leaving = _left_before(file, inside, measured)
            within = asked | {around}
            decorators = around.decorator_list if around not in asked else []  # registries decorate functions of their own
            if any(is_rank_decorator(d) or _calls_on_some_ranks(file, d, within) for d in decorators):
                return Guard(file, around, function=True)
            return leaving or found
        if isinstance(around, ast.Lambda) and file.program.callers(file, around):
            return found
        by = _guard_by(file, around, inside, measured)
        if by is not None and isinstance(around, ast.If) and by.statement is around and is_made_on_both(file, around, node):
            by = _left_before(file, inside, measured)
        if found is not None and isinstance(around, ast.While) and inside in around.body and ends_by_own_data(file, around):
            by = Guard(file, around)  # ranks go round another number of times
        found = by or found
        inside = around
    return _left_before(file, inside, measured) or found if isinstance(inside, ast.stmt) else found


def _guard_by(file: File, around: ast.AST, inside: ast.AST, measured: bool = False) -> Guard | None:
    """The guard that a node is for what lies right inside of it, or else a statement in front of that, in its block."""
    if isinstance(around, (ast.If, ast.While)) and inside is not around.test:
        if is_rank_condition(file, around.test) or parts_ranks(file, around, inside):
            return Guard(file, around)
        if measured and lets_some_ranks_in(file, around):
            return Guard(file, around)
    elif isinstance(around, (ast.For, ast.AsyncFor)) and inside in around.body and is_uneven(file, around):
        return Guard(file, around)
    elif isinstance(around, ast.expr) and _guards_expression(file, around, inside):
        return Guard(file, file.statement(around))
    return _left_before(file, inside, measured) if not isinstance(inside, (ast.FunctionDef, ast.ClassDef)) else None


def is_guarded_again(file: File, node: ast.AST, calls: Calls, block: Sequence[ast.stmt]) -> bool:
    """Whether a further guard lies between a block and a place in it, or one that calls in the block lead to."""
    if calls and any(guard_of(*place) is not None for place in (*calls[1:], (file, node))):
        return True
    file, inside = calls[0] if calls else (file, node)
    for around in file.ancestors(inside):
        if inside in block or isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        if _guard_by(file, around, inside) is not None:
            return True
        inside = around
    return False


def _calls_on_some_ranks(file: File, decorator: ast.expr, asked: frozenset[ast.AST]) -> bool:
    """Whether a decorator of the repository calls what it decorates behind a guard; it may be made by itself, as a partial."""
    maker = file.values(decorator.func) if isinstance(decorator, ast.Call) else []
    for value in (*file.values(decorator), *maker):
        if isinstance(value, FunctionValue):
            owner, function = file.program.function_node(value)
            if any(guard_of(owner, call, asked) is not None for call in file.program.once(_Decorators).calls(function)):
                return True
    return False


class _Decorators:
    """The calls of what decorators decorate, found once for all that they do."""

    def __init__(self, _: Program) -> None:
        self._calls: dict[ast.AST, list[ast.Call]] = {}

    def calls(self, function: ast.AST) -> list[ast.Call]:
        if function not in self._calls:
            is_def = isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) and bool(function.args.args)
            given = function.args.args[0].arg if is_def else None  # type: ignore[attr-defined]
            named = (n for n in ast.walk(function) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)) if given else ()
            self._calls[function] = [call for call in named if call.func.id == given]  # type: ignore[attr-defined]
        return self._calls[function]


def _is_made_by_decorator(file: File, function: ast.AST, caller: File, call: ast.Call) -> bool:
    """Whether a call stands in a function of the repository that decorates the function called."""
    decorators = getattr(function, "decorator_list", ())
    values = [v for d in decorators for v in file.values(d) if isinstance(v, FunctionValue)]
    around = set(caller.ancestors(call))
    return any(file.program.function_node(value)[1] in around for value in values)


class Guards:
    """Which guards decide what ranks come to a place; remembers what it found out about functions."""

    def __init__(self, program: Program, is_early: Callable[[File, ast.AST], bool] = lambda *_: False) -> None:
        """``is_early`` says of a place that nothing is sharded there yet, so that no guard matters."""
        self.program = program
        self._is_early = is_early
        self._known: dict[tuple[ast.AST, bool], tuple[list[tuple[Guard, Calls]], bool] | None] = {}

    def of(self, file: File, node: ast.AST, measured: bool = False) -> list[tuple[Guard, Calls]]:
        """The guards of a place, with the calls that lead from each to it, outermost first; see `guard_of`.

        A guard in the place's own function, without calls, is not among them where all ways there are guarded further
        out: the other ranks have to join in out there already.
        """
        found = self._of(file, node, 0, measured)[0]
        return [] if found and self._is_early(file, node) else found

    def all_lead_to(self, file: File, node: ast.AST) -> bool:
        """Whether no rank comes to a place but through a guard."""
        return self._of(file, node, 0, False)[1]

    def _of(self, file: File, node: ast.AST, depth: int, measured: bool) -> tuple[list[tuple[Guard, Calls]], bool]:
        """Guards, and whether all ways to the place lead through one."""
        own = guard_of(file, node, measured=measured)
        function = file.function(node)
        outer = self._around(file, function, depth, measured) if function is not None else None
        found, all_guarded = outer or ([], False)
        if own is not None and not all_guarded:
            found = [*found, (own, ())]
        return found, all_guarded or own is not None

    def _around(
        self, file: File, function: ast.AST, depth: int, measured: bool
    ) -> tuple[list[tuple[Guard, Calls]], bool] | None:
        """The guards in all that call a function, and whether no call is without one; None while that is being asked."""
        key = (function, measured)
        if key in self._known or depth > _DEEPEST:
            return self._known.get(key)
        self._known[key] = None
        found: list[tuple[Guard, Calls]] = []
        ways = []
        sites = self._objects_of_some_ranks(file, function)
        for caller, call in self.program.callers(file, function):
            if _is_made_by_decorator(file, function, caller, call):
                continue  # the decorated function has that guard itself
            if self._is_early(caller, call):
                continue  # nothing that comes this way is sharded
            further, guarded = self._of(caller, call, depth + 1, measured)
            if sites and not guarded and _is_called_on(caller, call, sites):
                further, guarded = [(Guard(caller, _dispatching(caller, call)), ())], True
            found += [(guard, (*calls, (caller, call))) for guard, calls in further]
            ways.append(guarded)
        for other, call in deferred_by(self.program, file, function):
            found.append((Guard(other, other.statement(call), deferred=True), ((other, call),)))
            ways.append(True)
        self._known[key] = _fewer(found), bool(ways) and all(ways)
        return self._known[key]

    def _objects_of_some_ranks(self, file: File, function: ast.AST) -> set[int]:
        """Where only some ranks make an object whose method a function is, in some program: hooks that rank 0 alone has."""
        cls = file.enclosing_class(function)
        if cls is None or file.parents.get(function) is not cls:
            return set()
        value = next((v for v in file.values(cls) if isinstance(v, ClassValue)), None)
        sites = self.program.sites_of_objects.get(value, set()) if value is not None else set()
        written = [(*self.program.call_node(site), site) for site in sites if self.program.is_written_as_call(site)]
        # What tests make is for themselves.
        behind = [(site, call, guard) for made_in, call, site in written
                  if not is_test(made_in.path) and (guard := guard_of(made_in, call)) is not None]  # fmt: skip
        calls = [call for _, call, _ in behind]
        return {site for site, call, guard in behind if not _has_other_branch(guard, call, calls)}


def _has_other_branch(guard: Guard, call: ast.Call, calls: Sequence[ast.Call]) -> bool:
    """Whether the ranks that do not come to a call behind a test come to another one of these, in the other branch."""
    test = guard.statement
    if not isinstance(test, ast.If) or guard.leaves:
        return False
    branches = [{id(node) for statement in branch for node in ast.walk(statement)} for branch in (test.body, test.orelse)]
    own = next((branch for branch in branches if id(call) in branch), set())
    return any(id(other) in branch for branch in branches if branch is not own for other in calls)


def _is_called_on(file: File, call: ast.Call, sites: set[int]) -> bool:
    """Whether a method may be called on an object that is made at one of these sites; who calls one's own comes from there."""
    if not isinstance(call.func, ast.Attribute):
        return True
    receiver, function = call.func.value, file.function(call)
    own = function.args.args[0].arg if function is not None and function.args.args and file.enclosing_class(function) else None
    if isinstance(receiver, ast.Name) and receiver.id == own:
        return False
    values = file.values(receiver)
    if values and all(isinstance(value, ClassValue) for value in values):
        return False  # a static method
    made = [value.site for value in values if isinstance(value, Instance)]
    return not made or not sites.isdisjoint(made)


def _fewer(found: list[tuple[Guard, Calls]]) -> list[tuple[Guard, Calls]]:
    """Ways from guards, where those are one that are too many between the same two calls: there may be thousands."""
    between: dict[tuple[ast.AST, ast.AST | None, ast.AST | None], list[tuple[Guard, Calls]]] = {}
    for guard, calls in found:
        first, last = (calls[0][1], calls[-1][1]) if calls else (None, None)
        between.setdefault((guard.statement, first, last), []).append((guard, calls))
    kept: list[tuple[Guard, Calls]] = []
    for ways in between.values():
        if len(ways) > _MOST_WAYS or any(guard.many for guard, _ in ways):
            guard, calls = min(ways, key=lambda way: len(way[1]))
            kept.append((replace(guard, many=True), calls))
        else:
            kept += ways
    return kept


def _dispatching(file: File, call: ast.Call) -> ast.stmt:
    """The statement that calls a method on whatever objects a rank has: the outermost loop over them, or the call's own."""
    called = {n.id for n in ast.walk(call.func) if isinstance(n, ast.Name)}  # also in `getattr(hook, name)(self)`
    found = file.statement(call)
    for around in file.ancestors(call):
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            break
        targets = (n.id for n in ast.walk(around.target) if isinstance(n, ast.Name)) if isinstance(around, ast.For) else ()
        if isinstance(around, ast.For) and not called.isdisjoint(targets):
            found = around
    return found


def _guards_expression(file: File, around: ast.expr, inside: ast.AST) -> bool:
    if isinstance(around, _COMPREHENSIONS):
        return any(is_uneven(file, each) for each in around.generators)
    if isinstance(around, ast.IfExp):
        return inside is not around.test and is_rank_condition(file, around.test)
    earlier = around.values[: around.values.index(inside)] if isinstance(around, ast.BoolOp) and inside in around.values else []  # type: ignore[arg-type]
    return any(is_rank_condition(file, part) for part in earlier)


def _left_before(file: File, inside: ast.AST, measured: bool = False) -> Guard | None:
    """The first statement in front of another one, in its block, by which some ranks leave the block."""
    if not isinstance(inside, ast.stmt):
        return None
    try:
        block, index = file.block_of(inside)
    except (ValueError, KeyError):
        return None
    found = leaves_of_some_ranks(file)
    left = (s for s in block[:index] if s in found or (measured and leaves_some_ranks_out(file, s)))
    return next((Guard(file, statement, leaves=True) for statement in left), None)
