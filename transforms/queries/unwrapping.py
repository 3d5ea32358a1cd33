"""Choices between ``x.module`` and ``x``: code that takes a wrapper off, whatever its form.

Where one branch is the other with ``x.module`` (FSDP1 keeps the same in ``x._fsdp_wrapped_module``) for ``x``, a test for
the wrapper answers *no* for a model of FSDP2, and the branch that is taken then is the right one: nothing has to change.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from typing import cast

from ..flow.values import FunctionValue, Instance, Wrapped
from .arguments import handed_in
from .assignments import assigned_values
from .container_items import items_of
from .file import File
from .local_values import local_value
from .plain_branches import is_in_plain_branch
from .returned_items import filled_with, returned_items
from .sharding import ShardingQueries
from .wrapper_tests import asked_about, own_test, uses_of

INNER = frozenset({"module", "_fsdp_wrapped_module"})
"""What wrappers keep their module in."""
_DEVICE = ast.dump(ast.parse("next(_.parameters()).device", mode="eval").body)
"""What the device of a wrapper of DDP is of a module."""
_TESTS = frozenset(
    {"isinstance", "hasattr", "type", "issubclass", "callable", "getattr", "is_module_wrapper", "is_model_wrapper"}
)


def unwrapping_choice(
    file: File, node: ast.AST, by_any_function: bool = False
) -> ast.If | ast.IfExp | ast.While | ast.BoolOp | None:
    """The innermost such choice around a node, be it in its test or in the branch that unwraps.

    A function of the repository may make the test, if it answers as before: `by_any_function` takes that for granted.
    """
    inside: ast.AST = _kept_test(file, node) or node
    for around in file.ancestors(inside):
        if isinstance(around, ast.BoolOp) and _asks_inside_too(around, inside):
            return around
        if isinstance(around, (ast.If, ast.IfExp, ast.While)) and inside is not around:
            if not isinstance(around, ast.While) and _unwraps_what_lacks(file, around):
                return around
            choice = _without_not(around)
            if _in_orelse(choice, inside):
                inside = around
                continue
            kept = local_value(file, choice.test) if isinstance(choice.test, ast.Name) else None
            test = kept.value if kept is not None and kept.read_once else choice.test
            subject = _subject(test, file)
            is_choice = subject is not None and _only_unwraps(file, choice, subject)
            if is_choice and (by_any_function or _answers_stay(file, test)):
                return around
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            return None
        inside = around
    return None


def _kept_test(file: File, node: ast.AST) -> ast.expr | None:
    """The one read of ``is_wrapped = isinstance(model, DDP)``, where a node is in such a test."""
    test = next((part for part in (node, *file.ancestors(node)) if isinstance(part, (ast.Call, ast.stmt))), node)
    while isinstance(file.parents.get(test), ast.BoolOp):
        test = file.parents[test]
    if not isinstance(test, ast.expr) or _subject(test, file) is None:
        return None
    statement = file.parents[test]
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if not isinstance(target, ast.Name):
        return None
    for read in file.names_by_id[target.id]:
        kept = local_value(file, read) if isinstance(read.ctx, ast.Load) else None
        if kept is not None and kept.read_once and kept.statement is statement:
            return read
    return None


def _without_not(choice: ast.If | ast.IfExp | ast.While) -> ast.If | ast.IfExp | ast.While:
    """The same choice with the branches of ``if not test`` the other way round, where it has both."""
    test = choice.test
    if isinstance(choice, ast.While) or not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and choice.orelse):
        return choice
    if isinstance(choice, ast.IfExp):
        return ast.IfExp(test.operand, choice.orelse, choice.body)
    return ast.If(test.operand, choice.orelse, choice.body)


def _unwraps_what_lacks(file: File, choice: ast.If | ast.IfExp) -> bool:
    """``x.names if hasattr(x, "names") else x.module.names``: a model has them, its wrapper had not."""
    test = choice.test
    if not isinstance(test, ast.Call) or not isinstance(test.func, ast.Name) or test.func.id != "hasattr" or len(test.args) != 2:
        return False
    own, inside = choice.body, choice.orelse
    if isinstance(own, list) and isinstance(inside, list):
        if len(own) != 1 or len(inside) != 1:
            return False
        (own,), (inside,) = own, inside
    assert isinstance(own, ast.AST) and isinstance(inside, ast.AST)
    return _unwrapped(inside, ast.dump(test.args[0]), file) == ast.dump(own) != ast.dump(inside)


def _in_orelse(around: ast.If | ast.IfExp | ast.While, inside: ast.AST) -> bool:
    orelse = around.orelse if isinstance(around.orelse, list) else [around.orelse]
    return any(inside is part for part in orelse)


def _asks_inside_too(either: ast.BoolOp, inside: ast.AST) -> bool:
    """``f(x) or (isinstance(x, FSDP) and f(x.module))``, seen from the second part: what is asked of x is asked inside too."""
    if not isinstance(either.op, ast.Or) or not isinstance(inside, ast.BoolOp) or not isinstance(inside.op, ast.And):
        return False
    subject = _subject(inside.values[0])
    rest = inside.values[1:]
    asked = _unwrapped(rest[0] if len(rest) == 1 else ast.BoolOp(ast.And(), rest), subject) if subject else ""
    return any(asked == ast.dump(part) for part in either.values if part is not inside)


def only_asked_to_unwrap(file: File, test: ast.AST) -> bool:
    """Whether a test for wrappers is a function's own, and all that call it take the wrapper off, or nothing."""
    function = file.function(test)
    if not isinstance(function, ast.FunctionDef) or own_test(function) is None:
        return False
    calls = uses_of(file, function)
    return bool(calls) and all(unwrapping_choice(owner, call, by_any_function=True) is not None for owner, call in calls or ())


def _answers_stay(file: File, test: ast.expr) -> bool:
    """Whether the functions that make a test are asked for nothing else, and so are left as they are."""
    calls = [n for n in ast.walk(test) if isinstance(n, ast.Call) and asked_about(file, n) is not None]
    called = (file.program.function_node(value) for call in calls for value in file.program.callees(file, call))
    return all(only_asked_to_unwrap(owner, function.body[-1]) for owner, function in called)  # type: ignore[attr-defined]


def _subject(test: ast.expr, file: File | None = None) -> str | None:
    """What a test asks about, as a dump, if all its parts ask one thing what it is or has; None for other tests."""
    if file is not None and (model := asked_about(file, test)) is not None:
        return ast.dump(model)
    if isinstance(test, ast.BoolOp):
        subjects = {_subject(part, file) for part in test.values}
        subjects -= {"", *(_inside(subject, name) for subject in subjects for name in INNER)}
        return subjects.pop() if len(subjects) == 1 else None
    if isinstance(test, ast.Compare) and isinstance(test.left, ast.Call):
        test = test.left
    if isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id in _TESTS and test.args:
        return ast.dump(test.args[0])
    return None


def _inside(subject: str | None, name: str) -> str:
    """What a wrapper has in an attribute, as a dump."""
    return f"Attribute(value={subject}, attr={name!r}, ctx=Load())"


def _only_unwraps(file: File, choice: ast.If | ast.IfExp | ast.While, subject: str) -> bool:
    """Whether the branch for wrappers is the other one with ``.module`` of the subject in it."""
    if isinstance(choice, ast.IfExp):
        return _unwrapped(choice.body, subject, file) == ast.dump(choice.orelse) != ast.dump(choice.body)
    if isinstance(choice, ast.While) and all(_takes_layers_off(file, statement, subject) for statement in choice.body):
        return True
    if len(choice.body) != 1:
        return _only_unwraps_in_each(choice, subject)
    (body,) = choice.body
    if subject not in ast.dump(body) or ast.dump(body) == _unwrapped(body, subject, file):
        return False
    other = choice.orelse
    if _assigns_subject_to_itself(file, body, subject) and _others_unwrap_too(file, choice, subject):
        return True
    if isinstance(choice, ast.While):
        return False
    if not other and isinstance(body, ast.Return):
        block, index = file.block_of(choice)
        other = block[index + 1 : index + 2]
    elif not other and isinstance(body, ast.Assign):
        block, index = file.block_of(choice)
        other = block[:index][-1:]  # `raw = model`, in front of it
    if len(other) != 1:
        return False
    plain = _unwrapped(body, subject, file)
    return plain == ast.dump(other[0]) or _calls_itself(file, choice, body, other[0], subject)


def _takes_layers_off(file: File, node: ast.AST, subject: str) -> bool:
    """Whether all that a loop does is `x = x.module`, or the same with what other layers keep their module in."""
    if isinstance(node, ast.Assign):
        target = ast.dump(node.targets[0]).replace("ctx=Store()", "ctx=Load()")
        return len(node.targets) == 1 and target == subject and _takes_layers_off(file, node.value, subject)
    if isinstance(node, ast.IfExp):
        parts: list[ast.AST] = [node.body, node.orelse]
    elif isinstance(node, ast.If):
        parts = [*node.body, *node.orelse]
    else:
        return isinstance(node, ast.Break) or (isinstance(node, ast.Attribute) and ast.dump(node.value) == subject)
    return _subject(node.test, file) == subject and all(_takes_layers_off(file, part, subject) for part in parts)


def _only_unwraps_in_each(choice: ast.If | ast.While, subject: str) -> bool:
    """Whether the branches have the same statements, but for ``.module`` of the subject and of models beside it."""
    is_read = any(_inside(subject, name) in ast.dump(statement) for statement in choice.body for name in INNER)
    return is_read and [ast.dump(_without_inner(s)) for s in choice.body] == [ast.dump(s) for s in choice.orelse]


def _without_inner(node: ast.AST) -> ast.AST:
    return _WithoutInner().visit(copy.deepcopy(node))


class _WithoutInner(ast.NodeTransformer):
    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        found = self.generic_visit(node)
        is_inner = node.attr in INNER and isinstance(node.ctx, ast.Load)
        return cast(ast.Attribute, found).value if is_inner else found


def _unwrapped(node: ast.AST, subject: str, file: File | None = None) -> str:
    """The dump of a node with the subject in the place of the module in its wrapper, also where a function gives that."""
    dump = ast.dump(node)
    for name in INNER:
        dump = dump.replace(_inside(subject, name), subject)
    dump = dump.replace(_inside(subject, "device"), _DEVICE.replace("Name(id='_', ctx=Load())", subject))
    for call in ast.walk(node) if file is not None else ():
        if isinstance(call, ast.Call) and len(call.args) == 1 and not call.keywords and ast.dump(call.args[0]) == subject:
            called = file.program.callees(file, call) if file is not None else []
            if called and all(_reads_module(file, function) for function in called):  # type: ignore[arg-type]
                dump = dump.replace(ast.dump(call), subject)
    return dump


def _assigns_subject_to_itself(file: File, body: ast.stmt, subject: str) -> bool:
    if not isinstance(body, ast.Assign) or len(body.targets) != 1:
        return False
    target = ast.dump(body.targets[0]).replace("ctx=Store()", "ctx=Load()")
    return target == subject and _unwrapped(body.value, subject, file) == subject


def _others_unwrap_too(file: File, choice: ast.If | ast.IfExp | ast.While, subject: str) -> bool:
    """Whether nothing but other wrappers is looked for where a test says no, or a loop comes there too, without them."""
    match choice.orelse:
        case []:
            return True
        case [ast.If(test=test, body=[body]) as further] if _subject(test, file) == subject:
            return _assigns_subject_to_itself(file, body, subject) and _others_unwrap_too(file, further, subject)
    top: ast.AST = choice
    while isinstance(around := file.parents[top], ast.If) and around.orelse == [top]:
        top = around
    return isinstance(around, ast.While) and around.body == [top]


def _calls_itself(file: File, choice: ast.AST, body: ast.stmt, other: ast.stmt, subject: str) -> bool:
    """``return unwrap(x.module)`` in ``unwrap`` itself, beside ``return x``."""
    function = file.function(choice)
    if not isinstance(body, ast.Return) or not isinstance(other, ast.Return) or other.value is None:
        return False
    call = body.value
    if not isinstance(call, ast.Call) or not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not given or not _unwrapped(given[0], subject, file) == subject == ast.dump(other.value):
        return False
    return name == function.name or any(_hands_on_to(file, callee, function) for callee in file.program.callees(file, call))


def _hands_on_to(file: File, callee: FunctionValue, function: ast.AST) -> bool:
    """Whether a function does nothing but call another one."""
    owner, node = file.program.function_node(callee)
    body = [s for s in getattr(node, "body", ()) if not isinstance(s, ast.Expr)] if isinstance(node, ast.FunctionDef) else []
    call = body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None
    if not isinstance(call, ast.Call):
        return False
    return any(file.program.function_node(value)[1] is function for value in file.program.callees(owner, call))


_INSIDE = re.compile(r"unwrap|without|plain|(^|_)(raw|inner|bare|base|orig(inal)?)(_|$)|_only_module")
_DEEPEST = 3


def is_unwrapped(file: File, node: ast.expr, by_name: bool = True, depth: int = 0, surely: bool = False) -> bool:
    """Whether an expression stands for the module inside a wrapper, by what it is read off or assigned from.

    Names that hold the wrapper on one path and its module on the other are not told apart by their values. ``by_name``:
    a variable called ``raw_model`` is enough. ``surely``: a choice between that and another wrapper is not enough.
    """
    if isinstance(node, ast.IfExp):
        inside = [branch for branch in (node.body, node.orelse) if is_unwrapped(file, branch, by_name, depth, surely)]
        other = node.orelse if inside[:1] == [node.body] else node.body
        return len(inside) == 2 or (bool(inside) and not (surely and _is_another_wrapper(file, other, inside[0])))
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "getattr" and any(isinstance(a, ast.Constant) and a.value == "module" for a in node.args):
            return True
        callees = file.program.callees(file, node) if depth <= _DEEPEST else []
        if _INSIDE.search(name) is not None or any(_reads_module(file, v, depth) for v in callees):
            return True
        given = any(is_unwrapped(file, argument, by_name, depth + 1, surely) for argument in node.args) if callees else False
        return given and any(_gives_back(file, v, depth) for v in callees)
    if isinstance(node, ast.Attribute) and node.attr == "module":
        return True
    if isinstance(node, ast.Attribute) and depth <= _DEEPEST:
        if any(_reads_module(file, value, depth) for value in _properties(file, node)):
            return True
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return False
    name = node.attr if isinstance(node, ast.Attribute) else node.id
    if by_name and _INSIDE.search(name):
        return True
    values = assigned_values(file, node) if depth < _DEEPEST else []
    if any(isinstance(v, Wrapped) for value in values if isinstance(value, ast.Call) for v in file.values(value)):
        by_name = False  # what is called `base_model` is what goes into the wrapper
    if depth < _DEEPEST and any(is_unwrapped(*item, False, depth + 1, surely) for item in returned_items(file, node)):
        return True
    inside = [value for value in values if is_unwrapped(file, value, by_name, depth + 1, surely)]
    return bool(inside) and not (surely and any(_is_wrapped_later(file, value, inside) for value in values))


def _is_wrapped_later(file: File, node: ast.expr, inside: list[ast.expr]) -> bool:
    """Whether something that is assigned below what was taken out of a wrapper may be a wrapper."""
    is_last = node.lineno > max(value.lineno for value in inside)
    return is_last and any(isinstance(value, Wrapped) for value in file.values(node))


def _is_another_wrapper(file: File, node: ast.expr, inside: ast.expr) -> bool:
    """Whether an expression may be a wrapper, and not the one that another expression takes the module out of."""
    if ast.unparse(node) in (ast.unparse(part) for part in ast.walk(inside) if isinstance(part, ast.expr)):
        return False
    return any(isinstance(value, Wrapped) for value in file.values(node))


def _reads_module(file: File, function: FunctionValue, depth: int = 0) -> bool:
    """Whether a function gives what it took out of a wrapper, itself or by one that it calls."""
    owner, node = file.program.function_node(function)
    return any(is_unwrapped(owner, value, by_name=False, depth=depth + 1) for value in _given_by(owner, node))


def _given_by(file: File, function: ast.AST) -> list[ast.expr]:
    if isinstance(function, ast.Lambda):
        return [function.body]
    given = [statement.value for statement in file.returns_of(function) if statement.value is not None]
    return [*given, *(item for value in given for item in filled_with(file, value))]


def _gives_back(file: File, function: FunctionValue, depth: int) -> bool:
    """Whether a function may give what it was given, itself or by one that it hands that on to."""
    owner, node = file.program.function_node(function)
    parameters = {argument.arg for argument in ast.walk(node) if isinstance(argument, ast.arg)}
    for value in _given_by(owner, node) if depth <= _DEEPEST else ():
        if isinstance(value, ast.Name) and value.id in parameters:
            return True
        if isinstance(value, ast.Call) and any(isinstance(a, ast.Name) and a.id in parameters for a in value.args):
            if any(_gives_back(owner, callee, depth + 1) for callee in file.program.callees(owner, value)):
                return True
    return False


def _properties(file: File, node: ast.Attribute) -> Iterator[FunctionValue]:
    """The functions behind an attribute that a class of the repository computes."""
    flow = file.program.flow
    for value in file.values(node.value):
        if isinstance(value, Instance):
            for member in flow.members_of(value.cls, node.attr):
                if isinstance(member, FunctionValue) and "property" in _decorators(file, member):
                    yield member


def _decorators(file: File, function: FunctionValue) -> str:
    node = file.program.function_node(function)[1]
    return " ".join(map(ast.unparse, getattr(node, "decorator_list", ())))


def comes_unwrapped(
    sharding: ShardingQueries, file: File, node: ast.expr, by_name: bool = True, depth: int = 0, surely: bool = False
) -> bool:
    """Whether an expression stands for the module inside a wrapper of DDP here, or wherever its function is called from.

    A parameter does so if every caller that may hand in a model out of such a wrapper hands in what is inside, or what a
    test has told from wrappers.
    """
    if is_unwrapped(file, node, by_name, surely=surely) or is_in_plain_branch(file, node, surely):
        return True
    put = [(owner, item) for owner, item in items_of(file, node) if "ddp" in sharding.of(owner, item).wrapped_in]
    if put and depth <= _DEEPEST:
        return all(comes_unwrapped(sharding, owner, item, by_name, depth + 1, surely) for owner, item in put)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self" and depth <= _DEEPEST:
        kept = [value for value in assigned_values(file, node) if "ddp" in sharding.of(file, value).wrapped_in]
        return bool(kept) and all(comes_unwrapped(sharding, file, value, by_name, depth + 1, surely) for value in kept)
    function = file.function(node)
    if not isinstance(node, ast.Name) or function is None or depth > _DEEPEST:
        return False
    if any(file.function(binding) is function for binding in file.bindings.get(node.id, ())):
        return False
    inside = []
    for caller, call in file.program.callers(file, function):
        given = handed_in(file, node, node.id, call)
        found = sharding.of(caller, given) if given is not None else None
        if found is None or "ddp" in found.wrapped_in:
            inside.append(given is not None and comes_unwrapped(sharding, caller, given, by_name, depth + 1, surely))
    return bool(inside) and all(inside)
