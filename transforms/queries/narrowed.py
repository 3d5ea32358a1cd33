"""Places that only wrapped models come to: behind ``isinstance(model, DDP)``, asked there or in a function of the repository."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..facts.symbols import FSDP1, WRAPPERS
from ..flow.library import is_scheduler, makes_no_modules
from ..flow.values import ClassValue, External, Value
from .file import File
from .known_conditions import parts_that_hold
from .local_values import local_value

_DEEPEST = 3
_NEVER_SHARDED = frozenset({"torch.nn.DataParallel", "torch.nn.parallel.DataParallel"})
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def wrapper_asked_for(file: File, place: ast.AST, model: ast.expr) -> str | None:
    """The kind of wrapper, ``DDP`` or ``FSDP1``, that a condition around a place asks of a model; None without one."""
    if isinstance(model, ast.Name) and _is_unit(file, place, model.id):
        return WRAPPERS[FSDP1]
    if isinstance(model, ast.Subscript) and _gives_units(file, model.value):
        return WRAPPERS[FSDP1]
    kinds = (_asks(file, test, 0) for test in tests_of(file, place, model))
    return next((kind for kind in kinds if kind is not None), None)


def asks_for_other_class(file: File, place: ast.AST, model: ast.expr) -> bool:
    """Whether a condition around a place asks for a class that no sharded model is of, of a model or of what holds it."""
    if isinstance(model, ast.Attribute) and asks_for_other_class(file, place, model.value):
        return True
    for test in tests_of(file, place, model):
        if file.external(test.func) == "builtins.isinstance" and len(test.args) == 2:
            classes = file.values(test.args[1])
            if classes and all(_is_other(file, v) for v in classes):
                return True
    return False


def _is_other(file: File, cls: Value) -> bool:
    if isinstance(cls, External):
        return cls.name in _NEVER_SHARDED or is_scheduler(cls.name) or makes_no_modules(cls.name)
    return isinstance(cls, ClassValue) and not _wraps(file, cls)


def tests_of(file: File, place: ast.AST, model: ast.expr) -> Iterator[ast.Call]:
    """The calls with a model as first argument that have to answer yes for a place to be reached."""
    text = ast.unparse(model)
    for test, holds in _conditions(file, place):
        if _is_bound_between(file, test, place, text):
            return
        for part in parts_that_hold(test, holds):
            if isinstance(part, ast.Call) and part.args and ast.unparse(part.args[0]) == text:
                yield part


def _wraps(file: File, cls: ClassValue) -> bool:
    """Whether a class is derived from a wrapper."""
    return any(base in WRAPPERS or base.startswith("torch.nn.parallel") for base in file.program.flow.external_bases(cls))


def _is_unit(file: File, place: ast.AST, name: str) -> bool:
    """Whether a name is the variable of a loop over ``FSDP.fsdp_modules(model)``, beside others or not."""
    for around in file.ancestors(place):
        loops = around.generators if isinstance(around, _COMPREHENSIONS) else [around] if isinstance(around, ast.For) else []
        for loop in loops:
            given = (iterated for target, iterated in _taken_apart(loop.target, loop.iter) if target.id == name)
            if any(_gives_units(file, iterated) for iterated in given):
                return True
    return False


def _taken_apart(target: ast.expr, iterated: ast.expr) -> Iterator[tuple[ast.Name, ast.expr]]:
    """The names that a loop binds, each with what it runs over, through ``zip`` and ``enumerate``."""
    if isinstance(target, ast.Name):
        yield target, iterated
    elif isinstance(target, ast.Tuple) and isinstance(iterated, ast.Call):
        elements = target.elts[1:] if getattr(iterated.func, "id", "") == "enumerate" else target.elts
        for element, given in zip(elements, iterated.args, strict=False):
            yield from _taken_apart(element, given)


def _gives_units(file: File, value: ast.AST) -> bool:
    """Whether an expression is a call of ``FSDP.fsdp_modules``, of a function of the repository that returns one, or its name.

    The list may be written out as well: ``[m for m in model.modules() if isinstance(m, FSDP)]``.
    """
    if isinstance(value, ast.Name) and (made := local_value(file, value)) is not None:
        return made.value is not value and _gives_units(file, made.value)
    if isinstance(value, ast.ListComp) and isinstance(value.elt, ast.Name):
        tests = [test for loop in value.generators for test in loop.ifs if isinstance(test, ast.Call) and test.args]
        return any(ast.unparse(test.args[0]) == value.elt.id and _asks(file, test, 0) == WRAPPERS[FSDP1] for test in tests)
    if not isinstance(value, ast.Call):
        return False
    if file.external(value.func) == f"{FSDP1}.fsdp_modules":
        return True
    for owner, function in map(file.program.function_node, file.program.callees(file, value)):
        returned = [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None]
        if len(returned) == 1 and isinstance(returned[0], ast.Call) and returned[0] is not value:
            return owner.external(returned[0].func) == f"{FSDP1}.fsdp_modules"
    return False


def _conditions(file: File, place: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    """What has to be true, or false, for a place to be reached, as far as statements and operators around it say so."""
    inside = place
    for around in file.ancestors(place):
        if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return
        if isinstance(around, ast.BoolOp) and isinstance(around.op, ast.And) and inside in around.values:
            yield from ((value, True) for value in around.values[: around.values.index(inside)])  # type: ignore[arg-type]
        elif isinstance(around, ast.IfExp | ast.If | ast.While):
            branches = [[around.body], [around.orelse]] if isinstance(around, ast.IfExp) else [around.body, around.orelse]
            for branch, holds in zip(branches, (True, False), strict=True):
                if any(inside is part for part in branch):
                    yield around.test, holds
        if isinstance(inside, ast.stmt):
            yield from _asked_in_front(file, inside)
        inside = around


def _asked_in_front(file: File, statement: ast.stmt) -> Iterator[tuple[ast.expr, bool]]:
    """What is asserted in front of a statement in its block, and what it leaves the block for."""
    block, index = file.block_of(statement)
    for before in reversed(block[:index]):
        if isinstance(before, ast.Assert):
            yield before.test, True
        elif isinstance(before, ast.If) and not before.orelse and isinstance(before.body[-1], _LEAVES):
            yield before.test, False


def _is_bound_between(file: File, test: ast.expr, place: ast.AST, text: str) -> bool:
    """Whether a name, or what it begins with, is assigned behind a test and in front of a place."""
    begin, end = (test.lineno, test.col_offset), (place.lineno, place.col_offset)  # type: ignore[attr-defined]
    parts = text.split(".")
    stores = (n for length in range(1, len(parts) + 1) for n in file.bindings.get(".".join(parts[:length]), ()))
    return any(begin < (n.lineno, n.col_offset) < end for n in stores)


def _asks(file: File, test: ast.Call, depth: int) -> str | None:
    """The wrapper that a test asks for, itself or by a function that returns such a test of its parameter."""
    if file.external(test.func) == "builtins.isinstance" and len(test.args) == 2:
        asked = test.args[1].elts if isinstance(test.args[1], ast.Tuple) else [test.args[1]]
        kinds = {WRAPPERS.get(file.external(each) or "") for each in asked}
        return kinds.pop() if len(kinds) == 1 else None
    if depth > _DEEPEST:
        return None
    for owner, function in (file.program.function_node(value) for value in file.program.callees(file, test)):
        if isinstance(function, ast.FunctionDef) and function.args.args:
            returned = [n.value for n in ast.walk(function) if isinstance(n, ast.Return)]
            own = returned[0] if len(returned) == 1 else None
            parameter = function.args.args[0].arg
            if isinstance(own, ast.Call) and own is not test and own.args and ast.unparse(own.args[0]) == parameter:
                return _asks(owner, own, depth + 1)
    return None
