"""Questions about a module's very class: ``fully_shard`` gives a module a class of its own, so they are answered otherwise.

``class FSDPBlock(FSDPModule, Block)`` passes ``isinstance(module, Block)`` and nothing that asks for the class itself, its
name or its bases. What the class is used for besides (reading its attributes, calling it, printing its name) is no question.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..analysis.symbols import WRAPPERS
from ..analysis.values import Annotated, Bound, ClassValue, Derived, FunctionValue, Wrapped
from ..groups import Group
from ..migration import Migration
from ..sharding.checkpointing import APPLY
from ..sharding.constructor import constructor_of
from ..view import FileView
from .conditions import FSDP_MODULE
from .local_reads import runs_behind_the_wrap
from .passes import outside_name

IDENTITY = (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)
MEMBERSHIP = (ast.In, ast.NotIn)
_NAMES = frozenset({"__name__", "__qualname__"})
_PREFIX_TESTS = frozenset({"startswith"})
_TEXT = frozenset({"lower", "upper", "casefold", "strip"})


@dataclass(frozen=True, eq=False)
class ClassTest:
    """One question: ``node`` is the whole of it, ``subject`` the module, ``read`` its class."""

    view: FileView
    node: ast.expr
    subject: ast.expr
    read: ast.expr
    group: Group


def class_tests(migration: Migration) -> Iterator[ClassTest]:
    """Such questions about modules of a group, behind its wrap."""
    applied = list(_applied(migration))
    for view in migration.views():
        for node in view.nodes(ast.Call, ast.Attribute):
            subject = subject_of(view, node)
            if subject is None:
                continue
            question = _question(view, node)
            if question is None:
                continue
            group = _group_asked(migration, view, node, subject) or _group_applied(view, node, subject, applied)
            if group is not None:
                yield ClassTest(view, question, subject, node, group)


def subject_of(view: FileView, node: ast.expr) -> ast.expr | None:
    """``x`` in ``type(x)`` and ``x.__class__``."""
    if isinstance(node, ast.Attribute):
        return node.value if node.attr == "__class__" and isinstance(node.ctx, ast.Load) else None
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords and isinstance(node.func, ast.Name):
        return node.args[0] if node.func.id == "type" and outside_name(view, node.func) == "builtins.type" else None
    return None


def _question(view: FileView, read: ast.expr) -> ast.expr | None:
    """The expression that answers by the very class: a comparison, a look into a dictionary, a walk over the bases."""
    node, parent = read, view.parents[read]
    named = False
    while True:
        if isinstance(parent, ast.Attribute) and parent.attr in (*_NAMES, "__bases__", "__base__"):
            named = named or parent.attr in _NAMES
            if parent.attr not in _NAMES:
                return parent
        elif isinstance(parent, ast.Call) and node in parent.args and outside_name(view, parent.func) == "builtins.str":
            named = True
        elif isinstance(parent, ast.Attribute) and named and parent.attr in _PREFIX_TESTS:
            call = view.parents[parent]
            return call if isinstance(call, ast.Call) else None
        elif isinstance(parent, ast.Attribute) and named and parent.attr in _TEXT:
            call = view.parents[parent]
            if not isinstance(call, ast.Call):
                return None
            parent = call
        else:
            break
        assert isinstance(parent, ast.expr)
        node, parent = parent, view.parents[parent]
    if isinstance(parent, ast.Compare):
        return parent if _changes(view, parent, node, named) else None
    if isinstance(parent, ast.Subscript) and parent.slice is node and isinstance(parent.ctx, ast.Load):
        return parent
    if isinstance(parent, ast.Call) and parent.args[:1] == [node] and isinstance(parent.func, ast.Attribute):
        return parent if parent.func.attr == "get" else None
    return None


def _changes(view: FileView, comparison: ast.Compare, node: ast.expr, named: bool) -> bool:
    """Whether a comparison may be answered otherwise; part of a name is found in the longer name as well."""
    others = [part for part in (comparison.left, *comparison.comparators) if part is not node]
    if any(subject_of(view, inner) is not None for other in others for inner in ast.walk(other) if isinstance(inner, ast.expr)):
        return False  # two modules are compared with each other
    names = {outside_name(view, n) for other in others for n in ast.walk(other) if isinstance(n, (ast.Name, ast.Attribute))}
    if names & {*WRAPPERS, FSDP_MODULE}:
        return False
    looked_into = isinstance(comparison.ops[0], MEMBERSHIP) and node is comparison.comparators[0]
    return not (named and looked_into)


def _group_asked(migration: Migration, view: FileView, node: ast.expr, subject: ast.expr) -> Group | None:
    """The group of a module that is seen to be part of a model, or the model inside a wrapper, behind the wrap."""
    values = view.values(subject)
    if any(isinstance(value, (Wrapped, Annotated)) for value in values):
        return None  # neither the wrapper's class nor the one that takes its place is that of a module
    raw = [v for v in values if migration.groups.of([v]) is not None and _is_module(migration, v)]
    group = migration.groups.of(raw)
    if group is None or not runs_behind_the_wrap(migration, view, node, group):
        return None
    is_any_part = all(isinstance(value, Derived) for value in raw)
    return None if is_any_part and _is_one_unit(group) and not _names_own_class(view, node) else group


def _is_one_unit(group: Group) -> bool:
    """Whether nothing but the model as a whole gets a new class, not its parts."""
    keywords = [keyword.arg for wrap in group.wraps for keyword in wrap.node.keywords]
    return len(group.wraps) == 1 and "auto_wrap_policy" not in keywords and None not in keywords


def _names_own_class(view: FileView, node: ast.expr) -> bool:
    """Whether the class of the question is one of the repository, which may be that of the model itself."""
    parent = view.parents[node]
    others = parent.comparators if isinstance(parent, ast.Compare) else []
    return any(isinstance(value, ClassValue) for other in others for inner in ast.walk(other) for value in view.values(inner))


def _is_module(migration: Migration, value: object) -> bool:
    if isinstance(value, Derived):
        return value.kind == "modules"
    return any(value in group.raw for group in migration.groups.all)


def _applied(migration: Migration) -> Iterator[tuple[FunctionValue, Group]]:
    """Functions that are asked about every module of a model behind its wrap: ``model.apply(f)``, ``check_fn=f``."""
    for view in migration.views():
        for call in view.nodes(ast.Call):
            asked, model = _handed(view, call)
            group = migration.groups.of(view.values(model)) if asked is not None and model is not None else None
            if asked is None or group is None or not runs_behind_the_wrap(migration, view, call, group):
                continue
            if _is_moved(migration, view, call, group):
                continue
            for value in view.values(asked):
                function = value.function if isinstance(value, Bound) else value
                if isinstance(function, FunctionValue):
                    yield function, group


def _handed(view: FileView, call: ast.Call) -> tuple[ast.expr | None, ast.expr | None]:
    if view.external(call.func) == APPLY:
        asked = next((k.value for k in call.keywords if k.arg == "check_fn"), None)
        return asked, call.args[0] if call.args else None
    if isinstance(call.func, ast.Attribute) and call.func.attr == "apply" and len(call.args) == 1:
        return call.args[0], call.func.value
    return None, None


def _is_moved(migration: Migration, view: FileView, call: ast.Call, group: Group, depth: int = 0) -> bool:
    """Whether a call goes before the sharding with the wrap, or all calls of the function around it do."""
    around = {call, *view.ancestors(call)}
    plans = [constructor_of(migration, wrap.view, wrap.node, group).plan for wrap in group.wraps]
    if any(statement in around for plan in plans for statement in plan.moved_up):
        return True
    function = view.function(call)
    callers = migration.program.callers(view, function) if function is not None and depth < 3 else []
    return bool(callers) and all(_is_moved(migration, at, outer, group, depth + 1) for at, outer in callers)


def _group_applied(
    view: FileView, node: ast.expr, subject: ast.expr, applied: list[tuple[FunctionValue, Group]]
) -> Group | None:
    """The group whose modules a function is handed that asks for the class of its first parameter."""
    function = view.function(node)
    if function is None or not isinstance(subject, ast.Name):
        return None
    arguments = [argument.arg for argument in function.args.args if argument.arg not in ("self", "cls")]
    value = view.program.function_value(view, function)
    if arguments[:1] != [subject.id]:
        return None
    return next((group for asked, group in applied if asked == value), None)
