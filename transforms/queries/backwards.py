"""Where training goes backward, in functions that are called as well: there all ranks have to come by themselves."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from .file import File
from .program import Program

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_DEEPEST_STEP = 3
_WITHOUT = re.compile(r"\b(no_grad|inference_mode)\b|set_grad_enabled\(False\)")
_any: WeakKeyDictionary[Program, set[ast.AST]] = WeakKeyDictionary()
_sure: WeakKeyDictionary[Program, set[ast.AST]] = WeakKeyDictionary()


def has_backward(node: ast.AST) -> bool:
    """Whether a backward is written below a node."""
    return any(isinstance(n, ast.Attribute) and n.attr == "backward" and isinstance(n.ctx, ast.Load) for n in ast.walk(node))


def goes_backward(file: File, node: ast.AST) -> bool:
    """Whether a backward may be made below a node, or in a function that is called there."""
    return has_backward(node) or any(_trains(file, call) for call in ast.walk(node) if isinstance(call, ast.Call))


def is_at_each_step(file: File, node: ast.AST) -> bool:
    """Whether the innermost loop around a place, in its function, makes one step of training each time."""
    for around in file.ancestors(node):
        if isinstance(around, _FUNCTIONS):
            return False
        if isinstance(around, _LOOPS):
            return any(_makes_step(file, statement) for statement in around.body)
    return False


def _makes_step(file: File, node: ast.AST, depth: int = 0) -> bool:
    """Whether a backward is made below a node, or in a function called there, in no further loop but over parts of a batch."""
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        return False
    if isinstance(node, _LOOPS):
        return has_backward(node) and not any(isinstance(n, ast.Attribute) and n.attr == "step" for n in ast.walk(node))
    if isinstance(node, ast.Attribute) and node.attr == "backward" and isinstance(node.ctx, ast.Load):
        return True
    if isinstance(node, ast.Call) and depth < _DEEPEST_STEP:
        for owner, function in map(file.program.function_node, file.program.callees(file, node)):
            if any(_makes_step(owner, statement, depth + 1) for statement in _statements(function)):
                return True
    return any(_makes_step(file, child, depth) for child in ast.iter_child_nodes(node))


def _statements(function: ast.AST) -> Sequence[ast.AST]:
    if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return function.body
    return [function.body] if isinstance(function, ast.Lambda) else []


def is_in_training(file: File, node: ast.AST) -> bool:
    """Whether a place stands in a function that goes backward, whatever it is called with; not in one that is defined there."""
    return file.function(node) in _going_backward(file.program, sure=True)


def may_learn(file: File, node: ast.AST, depth: int = 0) -> bool:
    """Whether a backward may go through what is computed at a place: one is made in its function, or in those that call it."""
    if is_without_gradients(file, node):
        return False
    function = file.function(node)
    if function is None or has_backward(function) or depth >= _DEEPEST_STEP:
        return has_backward(function or file.tree)
    return any(may_learn(caller, call, depth + 1) for caller, call in file.program.callers(file, function))


def is_without_gradients(file: File, node: ast.AST) -> bool:
    """Whether autograd is switched off around a place, in its function."""
    for around in file.ancestors(node):
        contexts: list[ast.expr] = []
        if isinstance(around, (ast.With, ast.AsyncWith)):
            contexts = [item.context_expr for item in around.items]
        elif isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef)):
            contexts = around.decorator_list
        if any(_WITHOUT.search(ast.unparse(context)) for context in contexts):
            return True
        if isinstance(around, _FUNCTIONS):
            return False
    return False


def is_trained_on_both(file: File, test: ast.If, call: ast.AST) -> bool:
    """Whether a call of one branch trains, and the other branch makes it too: then all ranks train, whatever the test says."""
    if not isinstance(call, ast.Call) or not test.orelse:
        return False
    of_body = any(call is node for statement in test.body for node in ast.walk(statement))
    own, other = (test.body, test.orelse) if of_body else (test.orelse, test.body)
    if not (_trains(file, call) or (_is_written(own) and _is_written(other))):
        return False
    functions = set(file.program.callees(file, call))
    text = ast.unparse(call.func)
    calls = (n for statement in other for n in ast.walk(statement) if isinstance(n, ast.Call))
    return any(ast.unparse(n.func) == text or functions & set(file.program.callees(file, n)) for n in calls)


def _is_written(branch: Sequence[ast.stmt]) -> bool:
    return any(has_backward(statement) for statement in branch)


def _trains(file: File, call: ast.Call) -> bool:
    functions = (file.program.function_node(value)[1] for value in file.program.callees(file, call))
    return any(function in _going_backward(file.program, sure=False) for function in functions)


def _going_backward(program: Program, sure: bool) -> set[ast.AST]:
    """The functions that go backward, and those that call them; ``sure`` leaves out what their arguments decide about."""
    known = _sure if sure else _any
    if program not in known:
        found: set[ast.AST] = set()
        pending: list[tuple[File, ast.AST]] = []
        for file in map(program.file, program.relevant_files()):
            pending += [(file, n) for n in file.nodes(ast.Attribute) if n.attr == "backward" and isinstance(n.ctx, ast.Load)]
        while pending:
            file, node = pending.pop()
            if sure and _is_optional(file, node):
                continue
            for around in file.ancestors(node):
                if isinstance(around, _FUNCTIONS) and around not in found:
                    found.add(around)
                    pending += program.callers(file, around)
        known[program] = found
    return known[program]


def _is_optional(file: File, node: ast.AST) -> bool:
    """Whether a test of what a function is handed decides about a place: of ``train`` where it evaluates as well."""
    function = file.function(node)
    given = {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)} - {"self"} if function is not None else set()
    inside: ast.AST = node
    for around in file.ancestors(node):
        if around is function:
            break
        if isinstance(around, ast.If) and inside is not around.test:
            other = around.orelse if any(inside is statement for statement in around.body) else around.body
            asked = [n for n in ast.walk(around.test) if isinstance(n, (ast.Name, ast.Attribute))]
            named = {n.id if isinstance(n, ast.Name) else n.attr for n in asked}
            if named & (given | {"training"}) and not _is_written(other):
                return True
        inside = around
    return False
