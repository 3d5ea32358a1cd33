"""Uses of sharded models behind a guard's own test, which are no sites: calls, and what is handed to other code."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from .flow.values import Annotated, ClassValue, Constant, Container, Instance, Opaque, Unknown, Value, Wrapped
from .hidden import Hidden
from .queries.effects import computes_with_parameters, only_asks
from .queries.file import File
from .queries.guards import Guard, Guards, guard_of
from .queries.kept_models import hands_model_out_of_sight, keeps_model, kept_things, runs_model
from .queries.local_names import loop_of
from .queries.made_behind import is_made_behind
from .queries.named_methods import models_save_by
from .queries.number_reads import values_held
from .queries.order import is_before_wrap
from .queries.other_names import names_of_kept
from .queries.program import Program
from .queries.sharding import ShardingQueries
from .queries.spelling import Spelling
from .queries.summoned import is_summoned
from .queries.unwrapping import is_unwrapped
from .queries.worked_on import objects_of

_OF_MODELS = frozenset({"parameters", "named_parameters"})
"""Methods by which a model is one, whatever else comes to its name."""
_HARMLESS_FUNCTIONS = frozenset(
    {"print", "len", "type", "isinstance", "str", "repr", "id", "hasattr", "getattr", "format", "sum", "info", "debug", "watch"}
)

_LOOKED_AT = ("torch.", "copy.", "builtins.")
"""What needs all ranks among these functions is known."""


def uses_behind(
    program: Program, file: File, sharding: ShardingQueries, test: ast.AST, behind: Iterable[ast.AST]
) -> Iterator[tuple[Guard, Hidden]]:
    """Calls of sharded models and their parts, or to which they are handed, and loops over their parameters, behind a guard."""
    for place in behind:
        guard = guard_of(file, place if isinstance(place, ast.stmt) else next(ast.iter_child_nodes(place)))
        if guard is None:
            return
        for node in ast.walk(place):
            parent = file.parents.get(node)
            if (saved := _saved_by_name(program, file, sharding, node)) is not None and not is_made_behind(file, saved, guard):
                yield guard, Hidden(file, node, ast.unparse(saved), None, known=False, model=saved)
            is_unwrapping = isinstance(node, ast.Call) and isinstance(parent, ast.Attribute)  # trainer.unwrap().parameters()
            if not is_unwrapping and not (isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)):
                continue
            assert isinstance(node, (ast.Name, ast.Attribute, ast.Call)) and parent is not None
            is_called = isinstance(parent, ast.Call) and parent.func is node
            is_asked = isinstance(parent, ast.Attribute) and not _is_data(file, parent)
            kept_in = file.called_values(cast(ast.Call, parent)) if is_called else file.values(node) if is_asked else []
            keeps = runs_model if is_called else keeps_model
            is_model = _is_self(node) or bool(sharding.of_values(kept_in).wrappers)  # which is looked at as one
            if not is_model and any(keeps(program, sharding, v) for v in kept_in):
                things = kept_things(sharding, file, node) or names_of_kept(sharding, guard, kept_in)
                if things is None and isinstance(node, ast.Name) and loop_of(file, node) is not None:
                    things = Spelling(sharding, file, node, node).at(guard, ())  # `o` of `for o in optimizers`
                yield guard, Hidden(file, node, things, None)
            is_given = isinstance(parent, ast.Call) and node in parent.args and not _only_counts(parent)
            if is_given and isinstance(node, ast.Attribute) and _keeps_parameters(sharding, file, node):
                yield guard, Hidden(file, node, kept_things(sharding, file, node), None)
            if is_given and hands_model_out_of_sight(program, sharding, file, cast(ast.Call, parent), node):
                yield guard, Hidden(file, node, None, None, known=False, is_kept=True)
            if isinstance(parent, ast.Attribute):
                if not computes_with_parameters(program, file, parent):
                    continue
            elif not _is_work(file, parent, node):
                continue
            if not is_called and is_summoned(file, test, node):
                continue  # it is whole on each rank that the context makes it whole on
            values = file.called_values(cast(ast.Call, parent)) if is_called else file.values(node)
            variable = file.variable(node)
            if is_called:
                apart = sharding.called_apart(file, cast(ast.Call, parent))
            else:
                apart = sharding.made_apart(variable, values, file.path)
            found = sharding.of_owners(values, apart, file.path)
            is_model = _is_only_models(values) or (isinstance(parent, ast.Attribute) and parent.attr in _OF_MODELS)
            if not found.wrappers or not is_model or is_made_behind(file, node, guard):
                continue
            if (handed_to := _handed_to(file, node)) is not None and guard_of(file, handed_to) is None:
                continue  # the ranks that do not come here make this call elsewhere
            if not is_before_wrap(program, file, node, found):
                is_part = not sharding.of_values(values).wrappers
                thing = _whole(file, sharding, node) if is_part else ast.unparse(node)
                yield guard, Hidden(file, node, thing, None, model=node, objects=objects_of(sharding, file, node))
                for optimizer in _handed_beside(program, file, sharding, parent):
                    objects = objects_of(sharding, file, optimizer)
                    yield guard, Hidden(file, optimizer, ast.unparse(optimizer), None, model=optimizer, objects=objects)


def work_of_kept(guards: Guards, file: File, sharding: ShardingQueries, call: ast.Call) -> Iterator[tuple[Guard, Hidden]]:
    """Calls of what a library made with a sharded model, in functions that some ranks alone call."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    values = file.called_values(call)
    if not any(runs_model(guards.program, sharding, v) for v in values):
        values = [] if owner is None or _is_self(owner) else file.values(owner)  # who called a method is asked about there
        values = values if any(keeps_model(guards.program, sharding, v) for v in values) else []
    is_model = bool(sharding.of_values(values).wrappers)  # which is looked at as one
    for guard, calls in guards.of(file, call) if values and not is_model else ():
        if calls:
            yield guard, Hidden(file, call, names_of_kept(sharding, guard, values), None, calls, many=guard.many)


def handed_out_of_sight(program: Program, sharding: ShardingQueries, file: File, call: ast.Call) -> Iterator[ast.expr]:
    """The sharded models that a call hands to what nobody sees: ``pipeline.run(model=model)`` of a class found by its name."""
    is_known = program.callees(file, call) or (file.external(call.func) or "").startswith(_LOOKED_AT)
    for given in () if is_known else (*call.args, *(keyword.value for keyword in call.keywords)):
        if isinstance(given, (ast.Name, ast.Attribute)) and not _is_self(given) and _is_work(file, file.parents[given], given):
            if sharding.of(file, given).wrappers and _is_only_models(file.values(given)):
                yield given


def _is_self(node: ast.expr) -> bool:
    return ast.unparse(node) in ("self", "super()")


def _only_counts(call: ast.Call) -> bool:
    """Whether a call asks how many there are, or what kind of thing it is."""
    return isinstance(call.func, ast.Name) and call.func.id in {"len", "type", "isinstance", "bool", "id"}


def _saved_by_name(program: Program, file: File, sharding: ShardingQueries, node: ast.AST) -> ast.expr | None:
    """What holds something unknown that a method is called on, by whose name models of the repository save themselves."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or program.callees(file, node):
        return None
    holder = node.func.value
    if file.values(holder) or not models_save_by(sharding, node.func.attr):
        return None
    while isinstance(holder, ast.Subscript):
        holder = holder.value
    return holder if isinstance(holder, (ast.Name, ast.Attribute)) else None


def _is_data(file: File, attribute: ast.Attribute) -> bool:
    """Whether an attribute is only read, for what it holds or an entry of that: no method is called, or handed on."""
    parent = file.parents[attribute]
    return isinstance(parent, (ast.Attribute, ast.Subscript, ast.Tuple, ast.Compare, ast.BinOp, ast.FormattedValue))


def kept_by_some(program: Program, file: File, sharding: ShardingQueries, choice: ast.IfExp) -> Iterator[tuple[Guard, Hidden]]:
    """What a library made with a sharded model, or a list with it, that some ranks alone have: ``hooks if rank == 0 else []``."""
    guard = guard_of(file, choice.body)
    for branch in (choice.body, choice.orelse) if guard is not None else ():
        held = [*file.values(branch), *(value for values in values_held(file, branch) for value in values)]
        given = branch.args if isinstance(branch, ast.Call) else []
        is_handed = any(hands_model_out_of_sight(program, sharding, file, cast(ast.Call, branch), one) for one in given)
        if is_handed or any(keeps_model(program, sharding, value) for value in held):
            yield cast(Guard, guard), Hidden(file, branch, None, None, known=False, is_kept=True)


def _handed_to(file: File, node: ast.AST) -> ast.Call | None:
    """The call that a value is handed to, by itself or in a list."""
    around = file.parents[node]
    while isinstance(around, (ast.Dict, ast.List, ast.Tuple, ast.keyword)):
        around = file.parents[around]
    return around if isinstance(around, ast.Call) else None


def _keeps_parameters(sharding: ShardingQueries, file: File, node: ast.Attribute) -> bool:
    """Whether an attribute keeps parameters of a sharded model, as an average's owner does."""
    values = file.values(node)
    is_collection = bool(values) and all(isinstance(v, (Container, Constant)) for v in values)
    return is_collection and bool(sharding.of_owners(list(sharding.owners(values)), path=file.path).wrappers)


def _handed_beside(program: Program, file: File, sharding: ShardingQueries, parent: ast.AST) -> Iterator[ast.expr]:
    """The optimizers that code out of sight gets together with a model: what saves the one saves the other."""
    call = file.parents[parent] if isinstance(parent, ast.keyword) else parent
    if isinstance(call, ast.Call) and not program.callees(file, call):
        for given in (*call.args, *(keyword.value for keyword in call.keywords)):
            if isinstance(given, ast.Name | ast.Attribute) and sharding.of_optimizer(file, given).wrappers:
                yield given


def names_model(file: File, sharding: ShardingQueries, body: Iterable[ast.AST]) -> bool:
    """Whether some name or attribute in a block stands for a sharded model, or a part of one."""
    names = (n for part in body for n in ast.walk(part) if isinstance(n, (ast.Name, ast.Attribute)))
    return any(sharding.of_owners(file.values(name), path=file.path).wrappers for name in names)


def _whole(file: File, sharding: ShardingQueries, node: ast.expr) -> str | None:
    """The model that an expression is a part of: the parameters of a part may be gathered with those of the whole alone."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
        if sharding.of(file, node).wrappers:
            return ast.unparse(node)
    return None


def _is_only_models(values: Sequence[Value]) -> bool:
    """Whether nothing but models is known to come to an expression: what also holds tensors is taken for one of these."""
    return all(isinstance(v, (Wrapped, Instance, Opaque, Unknown, Constant, Annotated)) for v in values)


def _is_work(file: File, parent: ast.AST, node: ast.AST) -> bool:
    """Whether a model is called here, or handed to something that may call it; what unwraps it does not."""
    while isinstance(parent, (ast.Dict, ast.List, ast.Tuple)):
        parent = file.parents[parent]  # in what is handed on
    if isinstance(parent, ast.keyword) and parent.arg == "model_name":
        return False
    parent = file.parents[parent] if isinstance(parent, ast.keyword) else parent
    if not isinstance(parent, ast.Call):
        return False
    if parent.func is node:
        return True
    made = file.values(parent.func)
    name = parent.func.id if isinstance(parent.func, ast.Name) else getattr(parent.func, "attr", "")
    is_kept = name[:1].isupper() and isinstance(file.parents[parent], ast.Assign)
    if is_kept or (made and all(isinstance(v, ClassValue) for v in made)):
        return False  # an object that keeps it: what its methods do is looked at by itself
    if name in _HARMLESS_FUNCTIONS or name.startswith(("is_", "has_")):
        return False
    return not is_unwrapped(file, parent) and not only_asks(file.program, file, parent)
