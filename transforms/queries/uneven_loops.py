"""Loops over the part of a list that is a rank's own: some ranks may have none, and gather nothing (helpers/evaluation.py)."""

from __future__ import annotations

import ast
import re

from ..flow.values import FunctionValue
from .assignments import assigned_values
from .backwards import goes_backward
from .conditions import is_rank
from .file import File

_TRAINING = re.compile(r"backward|zero_grad|^optim(izers?)?$|^grad_scaler$")
_OPTIMIZER = re.compile(r"(?i)^optim(izers?)?$|^opt$|^(loss|grad)_scaler$")
_OF_OPTIMIZERS = frozenset({"step", "zero_grad", "param_groups", "add_param_group", "state", "state_dict", "load_state_dict"})
_AGREES = re.compile(r"all_?reduce|all_?gather|broadcast")
_TRAINS_BY_NAME = re.compile(r"(?i)train|learn|optimi[sz]e|epoch|^fit")
_CALLS_DEEP = 2


def is_uneven(file: File, loop: ast.For | ast.AsyncFor | ast.comprehension) -> bool:
    """Whether the ranks may run a loop unequally often, as ``for x in found[rank::world]``, or skip what is another's.

    Loops that train are left out: gradients are reduced in their backward, so they were even under the old wrapper too.
    """
    if not _is_split(file, loop.iter) and not _skips_others(file, loop):
        return False
    body = loop.body if isinstance(loop, ast.For | ast.AsyncFor) else [file.parents[loop]]
    return not any(trains(file, statement) for statement in body)


def ends_by_own_data(file: File, loop: ast.While) -> bool:
    """Whether each rank goes on with a loop for as long as its own data say, as ``while not done: state, done = game.step(...)``.

    Loops that train are left out, as above.
    """
    asked = {part for test in _tests_of_ends(loop) for part in _variables(test)}
    set_by_calls = (n for n in ast.walk(loop) if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call))
    is_set = any(not asked.isdisjoint(_variables(target)) for n in set_by_calls for target in n.targets)
    called = (getattr(n.func, "attr", getattr(n.func, "id", "")) for n in ast.walk(loop) if isinstance(n, ast.Call))
    may_train = any(map(_TRAINS_BY_NAME.search, called)) or trains(file, loop) or goes_backward(file, loop)
    return is_set and not _AGREES.search(ast.unparse(loop)) and not may_train


def _tests_of_ends(loop: ast.While) -> list[ast.expr]:
    leaving = (n for n in ast.walk(loop) if isinstance(n, ast.If) and isinstance(n.body[-1], (ast.Break, ast.Return)))
    return [loop.test, *(n.test for n in leaving)]


def _variables(node: ast.expr) -> set[str]:
    """The names in an expression, and the entries ``state["done"]``, each of which is a variable of its own."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return {ast.unparse(node)}
    inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    return {node.id} if isinstance(node, ast.Name) else {part for child in inner for part in _variables(child)}


def _skips_others(file: File, loop: ast.For | ast.AsyncFor | ast.comprehension) -> bool:
    """Whether a loop goes on at once for what falls to another rank: ``if i % world != rank: continue``."""
    counted = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    tests = [s.test for s in loop.body if isinstance(s, ast.If) and isinstance(s.body[-1], ast.Continue)] if isinstance(
        loop, ast.For | ast.AsyncFor) else loop.ifs  # fmt: skip
    for test in (t for t in tests if isinstance(t, ast.Compare)):
        sides = [test.left, *test.comparators]
        shares = (n.left for side in sides for n in ast.walk(side) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod))
        is_counted = any(isinstance(n, ast.Name) and n.id in counted for share in shares for n in ast.walk(share))
        if is_counted and any(is_rank(file, side) for side in sides):
            return True
    return False


def _is_split(file: File, value: ast.expr, is_named: bool = False) -> bool:
    """Whether an expression, or what a name in it was assigned in its function, is a rank's own slice of something."""
    for node in ast.walk(value):
        if isinstance(node, ast.Slice):
            if any(bound is not None and _has_rank(file, bound) for bound in (node.lower, node.upper)):
                return True
        elif isinstance(node, ast.Call):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            if any(_has_rank(file, argument) for argument in given) and _takes_part(file, node):
                return True
        elif isinstance(node, ast.Name) and not is_named:
            in_front = [made for made in assigned_values(file, node) if made.lineno < node.lineno]
            if any(_is_split(file, made, is_named=True) for made in in_front):
                return True
    return False


def _takes_part(file: File, call: ast.Call) -> bool:
    """Whether a call that is given a rank makes that rank's own slice."""
    if getattr(call.func, "id", getattr(call.func, "attr", "")) in ("range", "islice"):
        return True
    functions = (file.program.function_node(value) for value in file.program.callees(file, call))
    return any(
        isinstance(node, ast.Slice) and any(bound is not None and _has_rank(owner, bound) for bound in (node.lower, node.upper))
        for owner, function in functions
        for node in ast.walk(function)
    )


def _has_rank(file: File, bound: ast.AST) -> bool:
    return any(isinstance(n, ast.expr) and is_rank(file, n) for n in ast.walk(bound))


def trains(file: File, node: ast.AST, depth: int = 0) -> bool:
    """Whether a step of training may be made below a node, in functions that it calls or hands on too."""
    function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    for inner in (n for part in (node.body if function else [node]) for n in ast.walk(part)):  # not what decorates it
        if isinstance(inner, ast.Attribute) and _TRAINING.search(inner.attr):
            return True
        if isinstance(inner, ast.Name) and _OPTIMIZER.search(inner.id) and not _is_configuration(file, inner):
            return True
        if isinstance(inner, ast.Call) and depth < _CALLS_DEEP:
            handed = [v for a in inner.args for v in file.values(a) if isinstance(v, FunctionValue)]
            functions = (file.program.function_node(value) for value in (*file.program.callees(file, inner), *handed))
            if any(trains(owner, function, depth + 1) for owner, function in functions):
                return True
    return False


def _is_configuration(file: File, name: ast.Name) -> bool:
    """Whether what is called ``opt`` stands for options: something else than optimizers have is read off it in its function."""
    for use in ast.walk(file.function(name) or file.tree):
        if isinstance(use, ast.Name) and use.id == name.id:
            parent = file.parents[use]
            if isinstance(parent, ast.Attribute) and parent.attr not in _OF_OPTIMIZERS:
                return True
            if isinstance(parent, ast.Subscript) and parent.value is use:
                return True
            if isinstance(parent, ast.keyword) and parent.arg is None:
                return True
    return False


def may_go_other_rounds(file: File, function: ast.AST, depth: int = 0) -> bool:
    """Whether a method calls its model, or parts of it, in a loop that it leaves by what it has computed: as sampling does."""
    for loop in (n for n in ast.walk(function) if isinstance(n, ast.For | ast.While)):
        leaves = isinstance(loop, ast.While) or any(isinstance(n, ast.Break) for n in ast.walk(loop))
        calls = (n.func for n in ast.walk(loop) if isinstance(n, ast.Call))
        if leaves and any("self" in (getattr(c, "id", ""), getattr(getattr(c, "value", None), "id", "")) for c in calls):
            return True
    calls = [n for n in ast.walk(function) if isinstance(n, ast.Call)] if depth < _CALLS_DEEP else []
    called = (file.program.function_node(value) for call in calls for value in file.program.callees(file, call))
    return any(may_go_other_rounds(*place, depth + 1) for place in called)
