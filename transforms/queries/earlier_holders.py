"""What may hold a model's parameters before they are sharded, and what may have been set on them: sharding makes new ones."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from ..flow.values import Derived, Instance, Opaque, Optimizer, Unknown, Value
from .file import File
from .identity_reads import takes_identities
from .kept_parameters import keeps_parameters
from .program import Program
from .sharding import ShardingQueries

_OF_TENSORS = frozenset({"data", "grad", "requires_grad"})
_HOOKED = re.compile(r"\.register_(?:post_accumulate_grad_)?hook\(")
_PARAMETER = re.compile(r"p|w|par(am(eter)?)?s?|weight|bias")


def is_held_earlier(sharding: ShardingQueries, paths: Sequence[str], file: File, wrap: ast.Call, models: Sequence[Value]) -> bool:
    """Whether something may hold the parameters of models when a call wraps them, or attributes may tell them apart.

    ``paths`` are the files of the same programs. Where no optimizer is seen, nobody knows which one there is.
    """
    if _has_earlier_optimizer(sharding, paths, file, wrap, models) or _sets_attributes(file.program, paths):
        return True
    if any(_HOOKED.search(file.program.text(path)) or takes_identities(sharding, file.program.file(path)) for path in paths):
        return True
    return keeps_parameters(file.program, paths, sharding.with_parts(models), file, wrap)


def _has_earlier_optimizer(
    sharding: ShardingQueries, paths: Sequence[str], file: File, wrap: ast.Call, models: Sequence[Value]
) -> bool:
    """Whether an optimizer over these models, or over nobody knows what, may exist already."""
    program, modules = file.program, sharding.with_parts(models)
    is_known = not any(_may_be_other(program, model) for model in models)
    optimizers = [
        value for value in list(program.flow.values)
        if isinstance(value, Optimizer) and program.facts[program.flow.file_of_call(value.site)].path in paths
    ]  # fmt: skip
    for value in optimizers:
        call = program.flow.calls[value.site]
        handed = call.arguments[0] if call.arguments else dict(call.keywords).get("params")
        owners = list(sharding.owners(program.flow.values_of(handed))) if handed is not None else []
        may_hold = not is_known or not owners or any(owner in modules for owner in owners)
        if may_hold and not _is_behind(file, value, wrap):
            return True
    return not optimizers


def _may_be_other(program: Program, model: Value) -> bool:
    """Whether a model may be one that something else made: what nobody knows, or what code out of sight gives for another."""
    if not isinstance(model, Opaque) or model.site < 0:
        return isinstance(model, Unknown)
    call = program.flow.calls[model.site]
    given = [*call.arguments, *(variable for _, variable in call.keywords)]
    return any(isinstance(v, (Instance, Opaque, Unknown)) for one in given if one >= 0 for v in program.flow.values_of(one))


def _is_behind(file: File, optimizer: Optimizer, wrap: ast.Call) -> bool:
    """Whether an optimizer is built further down in the function of the wrap."""
    if file.program.flow.file_of_call(optimizer.site) != file.index:
        return False
    _, call = file.program.call_node(optimizer.site)
    return file.function(call) is file.function(wrap) and call.lineno > wrap.lineno


def _sets_attributes(program: Program, paths: Sequence[str]) -> bool:
    """Whether parameters get attributes of the program's own, such as `weight.no_decay`, that the sharded ones need as well."""
    for path in paths:
        index = program.index(path)
        for owner, attribute, _ in program.facts[index].stores:
            if attribute not in _OF_TENSORS and attribute.isidentifier() and _are_parameters(program.flow.values_of(owner)):
                return True
        if "setattr" in program.text(path) and _sets_by_name(program.file(index)):
            return True
    return False


def _sets_by_name(file: File) -> bool:
    calls = (n for n in file.nodes(ast.Call) if isinstance(n.func, ast.Name) and n.func.id == "setattr" and n.args)
    return any(_may_be_parameter(file, call.args[0]) for call in calls)


def _may_be_parameter(file: File, owner: ast.expr) -> bool:
    values = file.values(owner)
    if all(isinstance(value, Unknown) for value in values):  # of which nothing is known but what it is called
        return _PARAMETER.fullmatch(getattr(owner, "attr", getattr(owner, "id", ""))) is not None
    return _are_parameters(values)


def _are_parameters(values: Sequence[Value] | frozenset[Value]) -> bool:
    return any(
        (isinstance(value, Derived) and value.kind == "parameters" and not value.pairs)
        or (isinstance(value, Opaque) and value.name.endswith(".Parameter"))
        for value in values
    )  # fmt: skip
