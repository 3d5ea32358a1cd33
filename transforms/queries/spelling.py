"""How the models and optimizers that a place works on are spelled somewhere else: at the guard that the way there leads by."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..flow.values import Bound, Constant, FunctionValue, Instance, Opaque, Optimizer, Value, Wrapped
from .answers import Answer
from .arguments import handed_in, handed_in_by_keywords
from .assignments import assigned_values
from .file import File
from .guards import Calls, Guard
from .local_names import comprehension_of, only_source, spelled_out
from .made_behind import is_made_behind
from .other_names import names_of_kept, other_name
from .returned_items import taken_apart
from .sharding import ShardingQueries

_DEEPEST = 4
_ITEMS = frozenset({"items", "values"})
_PASS_ON = frozenset({"enumerate", "zip", "reversed", "list", "tuple", "sorted", "iter"})


class Spelling:
    """What one place works on, seen from the guards around it."""

    def __init__(self, sharding: ShardingQueries, file: File, node: ast.AST, thing: ast.expr | None) -> None:
        self.sharding, self.file, self.node, self.thing = sharding, file, node, thing
        self.values = _objects(file, thing) if thing is not None else set()

    @property
    def is_known(self) -> bool:
        """Whether a sharded model or its optimizer is known to come here."""
        if self.thing is None:
            return False
        of_model, of_optimizer = self._about(self.file, self.thing)
        return bool(of_model.wrappers or of_optimizer.wrappers)

    def is_plain(self, guard: Guard, calls: Calls) -> bool:
        """Whether what comes here by these calls is surely not sharded."""
        if not guard.many and calls and (given := self._given_by_keywords(calls[-1][1])) is not None:
            return all(about.answer is Answer.NO for value in given for about in self._about(calls[-1][0], value))
        if guard.many or not isinstance(self.thing, ast.Name):
            return False
        file, place, current = self.file, self.node, self.thing
        for caller, call in reversed(calls):
            given = handed_in(file, place, current.id, call)
            if given is None:
                return False
            is_followed = isinstance(given, ast.Name) and call is not calls[0][1]  # what it is by this way shows further out
            if all(about.answer is Answer.NO for about in self._about(caller, given)):
                return True
            if not is_followed and _may_be_text(caller, given):
                return True
            if not isinstance(given, ast.Name):
                return False
            file, place, current = caller, call, given
        return False

    def at(self, guard: Guard, calls: Calls) -> str | None:
        """An expression that is good at a guard, for the thing or for what holds it; None if there is none for all ways."""
        if self.thing is None or guard.many:
            return None
        if calls and (named := self._named_by_keywords(guard, calls)) is not None:
            return named
        scope = self.file.function(self.node) or self.file.tree
        sources = list(self._sources(self.thing, 0))
        owner: str | None = None
        for source in [*sources, *(spelled_out(scope, source) for source in sources)]:
            if calls:
                text = _as_seen_from(self.file, source, self.node, calls)
            elif guard.function:
                text = self._by_parameters(guard.statement, source)
            else:
                text = ast.unparse(source)
            for holder in _holders(text) if text is not None else ():
                if is_made_behind(guard.file, holder, guard, calls[-1][1] if calls else self.node):
                    continue
                if ast.unparse(holder) != "self":
                    return ast.unparse(holder)
                owner = "self"  # which may hold more than this
        if not calls:
            return owner
        called = calls[0][1].func
        kept = names_of_kept(self.sharding, guard, guard.file.values(called.value)) if isinstance(called, ast.Attribute) else None
        return other_name(self.sharding, guard, self.values) or owner or kept

    def _given_by_keywords(self, call: ast.Call) -> list[ast.expr] | None:
        """What a call hands in for the ``**kwargs`` that the thing is an entry of; None if it is none of one."""
        holders = {holder.id for name in self._names_of(self.thing) for holder in _iterated(self.file, name)
                   if isinstance(holder, ast.Name)}  # fmt: skip
        found = (handed_in_by_keywords(self.file, self.node, holder, call) for holder in holders)
        return next((given for given in found if given is not None), None)

    def _names_of(self, node: ast.expr | None, depth: int = 0) -> Iterator[ast.Name]:
        """The names that a thing is made of: of ``raw``, after ``raw = x.module if wrapped else x``, also ``x``."""
        for name in (n for n in ast.walk(node) if isinstance(n, ast.Name)) if node is not None and depth < _DEEPEST else ():
            yield name
            for value in assigned_values(self.file, name):
                yield from self._names_of(value, depth + 1)

    def _named_by_keywords(self, guard: Guard, calls: Calls) -> str | None:
        """The entries of ``**kwargs`` that may be sharded, as the caller behind the guard names them."""
        caller, call = calls[-1]
        given = self._given_by_keywords(call) if len(calls) == 1 else None
        may_be = [value for value in given or () if any(about.answer is not Answer.NO for about in self._about(caller, value))]
        if not may_be or any(is_made_behind(guard.file, value, guard) for value in may_be):
            return None
        return ast.unparse(may_be[0] if len(may_be) == 1 else ast.List(may_be, ast.Load()))

    def _about(self, file: File, node: ast.expr):
        return self.sharding.of(file, node), self.sharding.of_optimizer(file, node)

    def _sources(self, node: ast.expr, depth: int) -> Iterator[ast.expr]:
        """Expressions in the place's function that lead to the thing: itself, what it is unwrapped from or read out of."""
        if isinstance(node, ast.Call):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            for part in given if depth < _DEEPEST else ():
                if self._leads_there(part) or _is_read_by_name(node, part):
                    yield from self._sources(part, depth + 1)
        yield node
        if isinstance(node, ast.IfExp) and (chosen := only_source(node)) is not None:
            yield ast.parse(chosen, mode="eval").body
        if isinstance(node, ast.Subscript):
            yield from self._sources(node.value, depth + 1)
        if isinstance(node, ast.Name) and depth < _DEEPEST:
            for value in assigned_values(self.file, node):
                if self._leads_there(value) or isinstance(value, (ast.Call, ast.Subscript)):
                    yield from (s for s in self._sources(value, depth + 1) if s is not value or not isinstance(value, ast.Call))
            yield from (s for given in taken_apart(self.file, node) if self._leads_there(given)
                        for s in self._sources(given, depth + 1))  # fmt: skip
            yield from _iterated(self.file, node)

    def _leads_there(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Constant):
            return False
        return bool(self.values & _objects(self.file, node)) or any(about.wrappers for about in self._about(self.file, node))

    def _by_parameters(self, function: ast.stmt, thing: ast.expr) -> str | None:
        """A model or optimizer in terms of the parameters of the function around it."""
        assert isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        parameters = {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
        nodes = [n for n in ast.walk(function) if isinstance(n, (ast.Attribute, ast.Name))]
        for node in [thing, *nodes]:
            base: ast.expr = node
            while isinstance(base, ast.Attribute):
                base = base.value
            same = node is thing or self.values & _objects(self.file, node)
            if isinstance(base, ast.Name) and base.id in parameters and same:
                return ast.unparse(node)
        return None


def alternatives(file: File, thing: ast.expr | None) -> list[ast.expr | None]:
    """What a thing may be: one of several where branches assign its variable, ``self.ema.model`` or ``self.model``, else itself.

    One branch's object may be None where another one is taken: what holds the model is named then.
    """
    if not isinstance(thing, ast.Name):
        return [thing]
    assigned = {ast.unparse(value): value for value in assigned_values(file, thing)}
    are_paths = all(isinstance(value, (ast.Name, ast.Attribute)) for value in assigned.values())
    return [_root(value) for value in assigned.values()] if len(assigned) > 1 and are_paths else [thing]


def _root(path: ast.expr) -> ast.expr:
    """``self.ema`` of ``self.ema.model``."""
    while isinstance(path, ast.Attribute) and not isinstance(path.value, ast.Name):
        path = path.value
    return path


def _may_be_text(file: File, node: ast.expr) -> bool:
    """Whether a text or a number may be handed in: what works on models with a function gives it other things by other ways."""
    return any(isinstance(v, Constant) and v.value is not None for v in file.values(node))


def _is_read_by_name(call: ast.Call, owner: ast.expr) -> bool:
    """Whether a call is ``getattr(owner, name)``."""
    return isinstance(call.func, ast.Name) and call.func.id == "getattr" and bool(call.args) and call.args[0] is owner


def _holders(text: str) -> Iterator[ast.expr]:
    """An expression, and what it is read out of: of ``models[name].inner`` also ``models``."""
    node: ast.expr = ast.parse(text, mode="eval").body
    yield node
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Subscript):
            yield node.value
        node = node.value


def _objects(file: File, node: ast.AST) -> set[Value]:
    return {v for v in file.values(node) if isinstance(v, (Wrapped, Optimizer, Instance, Opaque))}


def _iterated(file: File, name: ast.Name) -> Iterator[ast.expr]:
    """What a name runs over, as the variable of a loop."""
    if (own := comprehension_of(file, name)) is not None:
        yield from _containers(own.iter)
        return
    scope = file.function(name) or file.tree
    for binding in file.bindings.get(name.id, ()):
        around = next(a for a in file.ancestors(binding) if not isinstance(a, (ast.Tuple, ast.List, ast.Starred)))
        if isinstance(around, ast.For) and (scope is file.tree or scope in file.ancestors(around)):
            yield from _containers(around.iter)


def _containers(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in _ITEMS:
            yield from _containers(node.func.value)
        elif isinstance(node.func, ast.Name) and node.func.id in _PASS_ON:
            for argument in node.args:
                yield from _containers(argument)
    elif isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.List, ast.Tuple)):
        yield node


def _as_seen_from(file: File, thing: ast.expr, node: ast.AST, calls: Calls) -> str | None:
    """An expression in a function as its caller would write it, over all calls; None if it cannot be."""
    current: ast.expr = thing
    place: ast.AST = node
    for caller, call in reversed(calls):
        function = file.function(place)
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return None
        current = base = spelled_out(function, current)
        while isinstance(base, ast.Attribute):
            base = base.value
        if not isinstance(base, ast.Name):
            return None
        relay = _relay(caller, call, function)
        given = handed_in(file, place, base.id, call) if relay is None else _handed_through(relay, function, base.id, call)
        if given is None:
            scope = _scope_of(file, place, base.id)
            if caller is not file or scope is function or scope is not _scope_of(caller, call, base.id):
                return None
            given = base
        if not isinstance(given, (ast.Name, ast.Attribute, ast.Subscript)):
            return None
        text = ast.unparse(given) + ast.unparse(current).removeprefix(base.id)
        current = ast.parse(text, mode="eval").body
        file, place = caller, call
    return ast.unparse(current)


def _relay(caller: File, call: ast.Call, function: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.FunctionDef | None:
    """What a call calls itself, where that hands its ``*arguments`` on to a function: ``run("on_end", step, model)``."""
    if function.name in (getattr(call.func, "attr", ""), getattr(call.func, "id", "")):
        return None
    values = [v.function if isinstance(v, Bound) else v for v in caller.called_values(call)]
    nodes = [caller.program.function_node(v)[1] for v in values if isinstance(v, FunctionValue)]
    relays = [n for n in nodes if isinstance(n, ast.FunctionDef) and n is not function and n.args.vararg is not None]
    return relays[0] if relays and len(relays) == len(nodes) else None


def _handed_through(
    relay: ast.FunctionDef, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str, call: ast.Call
) -> ast.expr | None:
    """What a call hands in for a method's parameter through a method that takes some arguments for itself."""
    own, names = len(relay.args.args) - 1, [a.arg for a in function.args.args[1:]]
    given = call.args[own:]
    return given[names.index(name)] if name in names and names.index(name) < len(given) else None


def _scope_of(file: File, place: ast.AST, name: str) -> ast.AST:
    """The function around a place that a name is bound in, or the module."""
    functions = (a for a in file.ancestors(place) if isinstance(a, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))
    return next((function for function in functions if _binds(function, name)), file.tree)


def _binds(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, name: str) -> bool:
    if any(isinstance(a, ast.arg) and a.arg == name for a in ast.walk(function.args)):
        return True
    return any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in ast.walk(function))
