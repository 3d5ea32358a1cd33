"""Copies by ``copy.deepcopy`` that may be of sharded models, which refuse it: those that are seen, and others."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator

from ..flow.values import Constant, Derived, Instance, Opaque, Value, Wrapped
from .answers import Answer, Sharding
from .file import File
from .model_classes import may_get_models
from .order import is_before_wrap
from .program import Program
from .sharding import ShardingQueries
from .unwrapping import comes_unwrapped

IsBefore = Callable[[File, ast.AST], bool]
IsFresh = Callable[[File, ast.AST, ast.expr], bool]


class _Known:
    """What has been found out: the copies of each file, and whether wrappers are copied by the answers about a program."""

    def __init__(self, _: Program) -> None:
        self.copies: dict[File, list[ast.AST]] = {}
        self.of_wrappers: dict[ShardingQueries, bool] = {}


def deep_copies(file: File) -> list[ast.AST]:
    """The calls of ``copy.deepcopy`` in a file, and the places that hand it on."""
    known = file.program.once(_Known).copies
    if file not in known:
        known[file] = list(_deep_copies(file))
    return known[file]


def copies_wrappers(sharding: ShardingQueries) -> bool:
    """Whether DDP's wrapper is copied somewhere: the copy has one too, around a plain model."""
    known = sharding.program.once(_Known).of_wrappers
    if sharding not in known:
        files = map(sharding.program.file, sharding.program.relevant_files())
        calls = ((file, call) for file in files for call in deep_copies(file) if isinstance(call, ast.Call) and call.args)
        known[sharding] = any(copies_wrapper(sharding, file, call) for file, call in calls)
    return known[sharding]


def _deep_copies(file: File) -> Iterator[ast.AST]:
    if "deepcopy" not in file.source.text:
        return
    for node in file.nodes(ast.Name, ast.Attribute):
        if isinstance(node.ctx, ast.Load) and file.external(node) == "copy.deepcopy":
            parent = file.parents[node]
            yield parent if isinstance(parent, ast.Call) and parent.func is node else node


def copies_behind(file: File, model: ast.expr) -> list[tuple[File, ast.Call]]:
    """The calls of ``copy.deepcopy`` that an expression stands for; none where it may be anything else."""
    values = file.values(model)
    if not values or not all(isinstance(value, Opaque) and value.name == "copy.deepcopy" for value in values):
        return []
    sites = sorted(value.site for value in values if isinstance(value, Opaque))
    return [file.program.call_node(site) for site in sites if file.program.is_written_as_call(site)]


def copies_model(sharding: ShardingQueries, file: File, call: ast.Call, is_before: IsBefore, is_fresh: IsFresh) -> bool:
    """Whether a call copies what is seen to come out of a wrapper, or what a class gets that works on modules."""
    if not call.args or is_before(file, call) or is_fresh(file, call, call.args[0]):
        return False
    found = sharding.of(file, call.args[0])
    if not found.wrappers:
        found = _of_part(sharding, file, call.args[0])
    if not found.wrappers and not may_get_models(file, call.args[0]) and not _holds_wrapper(sharding, file, call.args[0]):
        return False
    return not is_before_wrap(file.program, file, call, found)


def _of_part(sharding: ShardingQueries, file: File, part: ast.expr) -> Sharding:
    """Whether a part of a sharded model is read off the model; under another name it may be one that is still being made."""
    model = part
    while isinstance(model, (ast.Attribute, ast.Subscript)):
        model = model.value
        if sharding.of(file, model).wrappers:
            return sharding.of_part(file, part)
    return Sharding(Answer.UNKNOWN)


def copies_wrapper(sharding: ShardingQueries, file: File, call: ast.Call) -> bool:
    """Whether DDP's wrapper itself is what a call copies, and not the model in it: names in the copy begin with ``module.``."""
    if (len(call.args) > 1 or call.keywords) and file.external(call.func) == "copy.deepcopy":
        return False
    return is_wrapper(sharding, file, call.args[0]) or _holds_wrapper(sharding, file, call.args[0])


def _holds_wrapper(sharding: ShardingQueries, file: File, node: ast.expr) -> bool:
    """Whether an object of the repository that is no module has a model in DDP as an attribute."""
    flow = sharding.program.flow
    holders = {flow.ids[v] for v in file.values(node) if isinstance(v, Instance) and not sharding.is_module(v)}
    held = [variable for (number, _), variable in flow.fields.items() if number in holders] if holders else []
    return any(isinstance(v, Wrapped) and v.kind == "DDP" for variable in held for v in flow.values_of(variable))


def is_wrapper(sharding: ShardingQueries, file: File, model: ast.expr) -> bool:
    """Whether an expression was DDP's wrapper itself, and not the model in it."""
    found = sharding.of(file, model)
    return found.wrappers == {"ddp"} and not found.in_place and not comes_unwrapped(sharding, file, model)


def is_left_to_wraps(sharding: ShardingQueries, file: File, copy: ast.AST, kinds: Collection[str]) -> bool:
    """Whether a copy keeps its form: where all models were in DDP (``kinds``), the wraps let them be copied as plain ones.

    A copy of DDP's wrapper is a wrapper, which code may look into. Of FSDP1's models each copy is rewritten that is seen.
    """
    if not isinstance(copy, ast.Call) or not copy.args:
        return True
    if copies_wrapper(sharding, file, copy) or _of_part(sharding, file, copy.args[0]).wrappers:
        return False  # a part may be of any class
    is_seen = bool(sharding.of(file, copy.args[0]).wrappers) or may_get_models(file, copy.args[0])
    return set(kinds) == {"ddp"} or not is_seen


def may_copy_models(
    sharding: ShardingQueries, files: Iterable[File], is_left: IsBefore, is_before: IsBefore, is_fresh: IsFresh
) -> bool:
    """Whether some copy in these files that keeps its form (``is_left``) may be of a sharded model."""
    copies = ((file, copy) for file in files for copy in deep_copies(file) if is_left(file, copy))
    return any(may_copy_model(sharding, file, copy, is_before, is_fresh) for file, copy in copies)


def may_copy_model(sharding: ShardingQueries, file: File, copy: ast.AST, is_before: IsBefore, is_fresh: IsFresh) -> bool:
    """Whether a use of ``copy.deepcopy`` may get a sharded model, seen or not, or what holds one.

    A model that is an attribute of a configuration is copied so, or one that ``map(copy.deepcopy, models)`` gets.
    """
    if is_before(file, copy):
        return False
    if not isinstance(copy, ast.Call) or not copy.args:
        return True
    copied = copy.args[0]
    if is_fresh(file, copy, copied) or is_before_wrap(file.program, file, copy, sharding.of(file, copied)):
        return False
    values = file.values(copied)
    return not values or not all(map(_is_no_model, values))


def _is_no_model(value: Value) -> bool:
    """Whether a value surely is none; beside a None that a class begins with, others may be assigned out of sight."""
    return isinstance(value, Derived) or (isinstance(value, Constant) and value.value is not None)
