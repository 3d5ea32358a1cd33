"""Models that are made on the way to a place, with nothing wrapped in between: plain there, however often the way is gone."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass, field

from ..flow.library import RETURN_SELF
from ..flow.values import Bound, ClassValue, Constant, External, FunctionValue, Instance, Opaque, Wrapped
from .arguments import handed_in
from .before_wraps import BeforeWraps
from .file import File, Function
from .loaded_objects import comes_from_file, is_data
from .sharding import ShardingQueries
from .wraps_inside import wraps_another, wraps_inside

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_DEEPEST = 5
_MOST_CALLERS = 8


@dataclass
class _Calls:
    """Calls of one function by the text of what they get: as an argument or receiver, and as an argument of unseen code."""

    getting: defaultdict[str, list[ast.Call]] = field(default_factory=lambda: defaultdict(list))
    unseen: defaultdict[str, list[ast.Call]] = field(default_factory=lambda: defaultdict(list))


class FreshModels:
    """Answers for expressions at places. ``before`` knows which places may wrap something, in however many steps."""

    def __init__(self, sharding: ShardingQueries, before: BeforeWraps) -> None:
        self.program = sharding.program
        self.sharding = sharding
        self.before = before
        self._calls: dict[int, defaultdict[Function | None, _Calls]] = {}
        self._asked_in = ""

    def holds(self, file: File, place: ast.AST, model: ast.expr) -> bool:
        """Whether a model that a place works on was surely made since the last wrap that may have been of it."""
        self._asked_in = file.path
        return self._holds(file, place, model, 0)

    def _holds(self, file: File, place: ast.AST, model: ast.expr, depth: int) -> bool:
        if depth > _DEEPEST or isinstance(file.function(place), ast.Lambda):
            return False
        if not isinstance(model, (ast.Name, ast.Attribute)):
            return self._is_made(file, place, model, depth)
        if not _is_path(model) or _is_of_outer_scope(file, model):
            return False
        if (container := _looped_over(file, place, model)) is not None:
            return self._holds(file, place, container, depth + 1)
        given = self._given_before(file, place, model)
        start = next((s for s in reversed(given) if _dominates(file, s, place)), None)
        if start is None and not isinstance(model, ast.Name):
            return self._is_made_with_owner(file, place, model, depth)
        if any(self._lies_between(file, start, wrap, place) for wrap in self._wraps_around(file, place, model)):
            return False
        reaching = [s for s in self._bindings(file, place, model) if s is start or self._lies_between(file, start, s, place)]
        if not all(self._is_given_new(file, s, model, depth) for s in reaching):
            return False
        if start is not None:
            return True
        function = file.function(place)
        assert isinstance(model, ast.Name)
        if function is not None and _is_being_made(file, function, model):
            return True
        parameter = function is not None and model.id in {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
        return self._is_handed_in(file, place, model, depth) if parameter else bool(reaching)

    def _is_made_with_owner(self, file: File, place: ast.AST, part: ast.expr, depth: int) -> bool:
        """Whether a part of a model came with it, which is new and was made of nothing that is wrapped."""
        owner = part
        while isinstance(owner, ast.Attribute):
            owner = owner.value
        made = [self._assigned(file, statement, owner) for statement in self._given_before(file, place, owner)]
        if not self._holds(file, place, owner, depth + 1):
            return False
        function = file.function(place)
        if isinstance(function, ast.FunctionDef) and isinstance(owner, ast.Name) and _is_being_made(file, function, owner):
            handed = [a for a in ast.walk(function.args) if isinstance(a, ast.arg) and a.arg != owner.id]
            if any(self.sharding.of_owners(file.values(argument), path=file.path).wrappers for argument in handed):
                return False
            is_seen = all(map(file.values, handed))
            return is_seen or not any(isinstance(value, Wrapped) for value in file.values(part))
        if not made:  # of an object that a caller has just made
            values = file.values(part)
            return bool(values) and not self.sharding.of_values(values).wrappers and not wraps_inside(self.sharding, file, part)
        given = [a for call in made for n in ast.walk(call or part) if isinstance(n, ast.Call)
                 for a in (*n.args, *(k.value for k in n.keywords))]  # fmt: skip
        return not any(self.sharding.of_owners(file.values(argument), path=file.path).wrappers for argument in given)

    def _wraps_around(self, file: File, place: ast.AST, model: ast.expr) -> list[ast.AST]:
        """What may wrap the model: calls that lead to a wrap, unseen code that it is handed to, and all that its holder is."""
        calls, text = self._calls_around(file, place), ast.unparse(model)
        found = [w for w in self.before.wraps_in(file, place) if not wraps_another(self.sharding, file, w, model)]
        found += calls.unseen.get(text, ())
        for owner in set(_prefixes(model)) - {text}:
            found += calls.getting.get(owner, [])
        return found

    def _calls_around(self, file: File, place: ast.AST) -> _Calls:
        """The calls of the function around a place, looked through once for all questions about it."""
        if file.index not in self._calls:
            by_function = self._calls[file.index] = defaultdict(_Calls)
            for call in file.nodes(ast.Call):
                calls, paths = by_function[file.function(call)], _given(call)
                for path in paths:
                    calls.getting[path].append(call)
                if paths and self.before.may_be_ours(file, call):
                    for path in paths:
                        calls.unseen[path].append(call)
                if isinstance(call.func, ast.Attribute):
                    calls.getting[ast.unparse(call.func.value)].append(call)
        return self._calls[file.index][file.function(place)]

    def _is_given_new(self, file: File, statement: ast.stmt, model: ast.expr, depth: int) -> bool:
        """Whether a statement binds a name or an attribute to a new model, also as one of several that a call returns."""
        value = self._assigned(file, statement, model)
        if value is not None:
            return self._is_made(file, statement, value, depth)
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if len(targets) != 1 or not isinstance(targets[0], ast.Tuple) or any(isinstance(e, ast.Starred) for e in targets[0].elts):
            return False
        places = [i for i, e in enumerate(targets[0].elts) if ast.unparse(e) == ast.unparse(model)]
        call = statement.value if isinstance(statement, ast.Assign) else None
        return len(places) == 1 and isinstance(call, ast.Call) and self._is_returned_new(file, call, depth, places[0])

    def _is_made(self, file: File, place: ast.AST, value: ast.expr, depth: int) -> bool:
        """Whether an expression gives a new model, or surely none that is sharded."""
        while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in RETURN_SELF:
            value = value.func.value
        if isinstance(value, (ast.IfExp, ast.BoolOp)):
            branches = value.values if isinstance(value, ast.BoolOp) else [value.body, value.orelse]
            return all(self._is_made(file, place, branch, depth) for branch in branches)
        if comes_from_file(file, value):
            return True
        if isinstance(value, ast.Subscript):
            return self._holds(file, place, value.value, depth + 1)
        if isinstance(value, (ast.Name, ast.Attribute)):
            return self._holds(file, place, value, depth + 1)
        if not isinstance(value, ast.Call):
            return isinstance(value, ast.Constant)
        if file.external(value.func) == "copy.deepcopy":
            return True  # of a sharded model it is a plain one too
        made = [v for v in file.values(value) if not (isinstance(v, Constant) and v.value is None)]
        site = file.call_site(value)
        if made and all(self._is_new(v, site) for v in made):
            return True
        return self._is_of_own_class(file, value) or self._is_returned_new(file, value, depth)

    def _is_of_own_class(self, file: File, call: ast.Call) -> bool:
        """Whether a class method makes an object of its class, of nothing that is wrapped."""
        function = file.function(call)
        if not isinstance(function, ast.FunctionDef) or not isinstance(call.func, ast.Name) or file.called_values(call):
            return False
        is_class_method = any(ast.unparse(decorator) == "classmethod" for decorator in function.decorator_list)
        if not is_class_method or not function.args.args or call.func.id != function.args.args[0].arg:
            return False
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        sharded = self.sharding.of_owners
        return all(is_data(file, one) or (file.values(one) and not sharded(file.values(one)).wrappers) for one in given)

    def _is_new(self, value: object, site: int) -> bool:
        if not isinstance(value, (Instance, Opaque)) or value.site != site or site < 0:
            return False
        return self.sharding.new_objects.is_new(value, self._asked_in)

    def _is_returned_new(self, file: File, call: ast.Call, depth: int, item: int | None = None) -> bool:
        """Whether every function that a call reaches returns a model that it makes, by itself or as an item of a tuple.

        Of a registry the call may reach classes and functions of libraries as well: what these make is new too.
        """
        called = [v.function if isinstance(v, Bound) else v for v in file.called_values(call)]
        functions = [v for v in called if isinstance(v, FunctionValue)]
        others = [v for v in called if not isinstance(v, FunctionValue)]
        if not functions or not all(isinstance(v, (ClassValue, External)) for v in others):
            return False
        site = file.call_site(call)
        if others and not all(self._is_new(v, site) for v in file.values(call) if getattr(v, "site", None) == site):
            return False
        for function in functions:
            other, node = self.program.function_node(function)
            if not isinstance(node, ast.FunctionDef) or any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in ast.walk(node)):
                return False
            returns = [n for n in other.returns_of(node) if item is not None or not isinstance(n.value, ast.Tuple)]
            models = [(n, _item(n.value, item)) for n in returns]
            if not models or not all(model is not None and self._holds(other, n, model, depth + 1) for n, model in models):
                return False
        return True

    def _is_handed_in(self, file: File, place: ast.AST, name: ast.Name, depth: int) -> bool:
        """Whether every caller hands in a new model."""
        callers = self.before.callers(file, place)
        if not callers or len(callers) > _MOST_CALLERS:
            return False
        for caller, call in callers:
            given = handed_in(file, place, name.id, call) if isinstance(call, ast.Call) else None
            if given is None or not self._holds(caller, call, given, depth + 1):
                return False
        return True

    # --- places in a function -----------------------------------------------------------------------------

    def _bindings(self, file: File, place: ast.AST, model: ast.expr) -> list[ast.stmt]:
        """The statements of the function around a place that bind a name or an attribute, in the order of the text."""
        function = file.function(place)
        bindings = file.bindings.get(ast.unparse(model), ())
        found = {file.statement(node) for node in bindings if file.function(node) is function}
        return sorted(found, key=lambda s: s.lineno)

    def _given_before(self, file: File, place: ast.AST, model: ast.expr) -> list[ast.stmt]:
        return [s for s in self._bindings(file, place, model) if s.lineno < place.lineno]  # type: ignore[attr-defined]

    def _assigned(self, file: File, statement: ast.stmt, model: ast.expr) -> ast.expr | None:
        """What a statement assigns to a name or an attribute; None where it is bound in another way."""
        key = ast.dump(model).replace("ctx=Store()", "ctx=Load()")
        found = [value for s, value in file.assignments.get(key, ()) if s is statement]
        return found[0] if len(found) == 1 else None

    def _lies_between(self, file: File, start: ast.stmt | None, other: ast.AST, place: ast.AST) -> bool:
        """Whether something may run after ``start`` (or the function's beginning) and before a place."""
        above = list(file.ancestors(place))
        if other is place or other in above:
            return False
        begun = start is None or (start.end_lineno or start.lineno) < other.lineno or other in ast.walk(start)  # type: ignore[attr-defined]
        if begun and _position(other) < _position(place):
            return True
        function = file.function(place)
        around = above[: above.index(function)] if function in above else above  # type: ignore[arg-type]
        again = {a for a in around if isinstance(a, _LOOPS) and (start is None or a not in file.ancestors(start))}
        return any(a in again for a in file.ancestors(other))


def _is_being_made(file: File, function: ast.AST, name: ast.Name) -> bool:
    """Whether this is the object whose constructor runs."""
    if not isinstance(function, ast.FunctionDef) or function.name != "__init__" or file.enclosing_class(function) is None:
        return False
    return bool(function.args.args) and function.args.args[0].arg == name.id


def _item(value: ast.expr | None, item: int | None) -> ast.expr | None:
    """One item of a tuple that is written out, or the value itself where none is asked for."""
    if item is None:
        return value
    parts = value.elts if isinstance(value, ast.Tuple) else []
    whole = not any(isinstance(part, ast.Starred) for part in parts)
    return parts[item] if whole and item < len(parts) else None


def _given(call: ast.Call) -> set[str]:
    """The texts of the paths that a call gets, each at its full length."""
    pending: list[ast.AST] = [*call.args, *(keyword.value for keyword in call.keywords)]
    given: set[str] = set()
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Name | ast.Attribute) and _is_path(node):
            given.add(ast.unparse(node))
        else:
            pending += ast.iter_child_nodes(node)
    return given


def _looped_over(file: File, place: ast.AST, model: ast.expr) -> ast.expr | None:
    """What a comprehension around a place takes a model out of: ``net.blocks`` of ``[b.weight for b in net.blocks]``."""
    for around in file.ancestors(place) if isinstance(model, ast.Name) else ():
        for each in around.generators if isinstance(around, _COMPREHENSIONS) else ():
            if isinstance(each.target, ast.Name) and each.target.id == model.id:  # type: ignore[attr-defined]
                return each.iter if _is_path(each.iter) else None
    return None


def _is_of_outer_scope(file: File, model: ast.expr) -> bool:
    """Whether a name is one that functions inside of others, or several of a module, share: any call may bind it anew."""
    while isinstance(model, ast.Attribute):
        model = model.value
    return isinstance(model, ast.Name) and any(model.id in node.names for node in file.nodes(ast.Global, ast.Nonlocal))


def _prefixes(model: ast.expr) -> list[str]:
    """``self.net``, ``self`` of ``self.net``: what holds a model, and itself."""
    return [ast.unparse(model), *(_prefixes(model.value) if isinstance(model, ast.Attribute) else [])]


def _is_path(model: ast.expr) -> bool:
    while isinstance(model, ast.Attribute):
        model = model.value
    return isinstance(model, ast.Name)


def _dominates(file: File, statement: ast.stmt, place: ast.AST) -> bool:
    """Whether a statement stands in a block that leads to a place, further up."""
    block, index = file.block_of(statement)
    return any(later in (place, *file.ancestors(place)) for later in block[index + 1 :])


def _position(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]
