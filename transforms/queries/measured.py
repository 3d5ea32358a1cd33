"""Conditions about what a rank measured, as the loss of its own data: only some ranks may meet them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .answers import Answer
from .arguments import given_for_parameter
from .assignments import assigned_values
from .backwards import goes_backward

if TYPE_CHECKING:
    from .file import File
    from .program import Program

_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_SAME_ON_ALL_RANKS = frozenset({"int", "len", "min", "max", "bool", "abs", "round", "range", "ceil", "floor", "getattr", "get",
                                "get_world_size", "device_count", "is_available", "is_initialized", "float", "str"})  # fmt: skip
_MEASURES = frozenset({"item", "time", "perf_counter", "monotonic", "time_ns", "isnan", "isinf", "isfinite", "random"})
_EVALUATES = frozenset({"item", "eval", "no_grad", "inference_mode"})
_AGREES = re.compile(r"all_?reduce|all_?gather|(?<!non_)broadcast|^reduce_\w+|^synchronize\w*|^gather_for_metrics$|^compute$")
_TAKES_ALL = re.compile(rf"{_AGREES.pattern}|barrier|load_state_dict|^step$")
_NUMBER = re.compile(
    r"(?i)(^|_)(loss(es)?|acc(uracy)?\d?|scores?|metrics?|psnr|ssim|bleu|rouge|wer|cer|ppl|perplexity|f1|auc|m?iou|fid|r?mse"
    r"|nll|bpd|rewards?|top\d|error)(_|$)"
)
_DEEPEST = 4


def answered_alike(file: File, test: ast.expr) -> Answer:
    """Whether all ranks answer a comparison alike: NO where it is about what each has measured and none told the others."""
    known = file.program.once(_Known).answers
    if test not in known:
        known[test] = _answered_alike(file, test)
    return known[test]


def lets_some_ranks_in(file: File, statement: ast.stmt) -> bool:
    """Whether some ranks alone may go into a test of what they measured: nothing in it takes all of them by itself.

    Training, agreement and loading do: under DDP other ranks would have waited there, or had other weights from then on.
    """
    if not isinstance(statement, ast.If) or answered_alike(file, statement.test) is not Answer.NO:
        return False
    return not goes_backward(file, statement) and not _calls(file, statement, _TAKES_ALL)


def leaves_some_ranks_out(file: File, statement: ast.stmt) -> bool:
    """Whether some ranks alone may go on behind a test of what they measured, which the others leave by."""
    if not isinstance(statement, ast.If) or statement.orelse or not isinstance(statement.body[-1], (ast.Return, ast.Continue)):
        return False
    block, index = file.block_of(statement)
    behind = block[index + 1 :]
    return lets_some_ranks_in(file, statement) and not any(
        goes_backward(file, part) or _calls(file, part, _TAKES_ALL) for part in behind
    )


class _Known:
    """What has been found out about tests, and which functions make some calls."""

    def __init__(self, _: Program) -> None:
        self.answers: dict[ast.expr, Answer] = {}
        self.callers: dict[re.Pattern[str], set[ast.AST]] = {}


def _answered_alike(file: File, test: ast.expr) -> Answer:
    parts = list(_slice(file, test))
    if not any(_is_comparison(node) for _, node in parts):
        return Answer.YES
    if any(_agrees(owner, node) for owner, node in parts):
        return Answer.YES
    calls = [(owner, node) for owner, node in parts if isinstance(node, ast.Call)]
    calls = [(owner, node) for owner, node in calls if _last_name(node.func) not in _SAME_ON_ALL_RANKS]
    if any(_measures(owner, call) for owner, call in calls) or any(_compares_numbers(node) for _, node in parts):
        return Answer.NO
    return Answer.UNKNOWN if calls else Answer.YES


def _slice(file: File, value: ast.expr) -> Iterator[tuple[File, ast.expr]]:
    """The expressions that a value is made of: its own parts, what their names were assigned, what callers hand in."""
    seen: set[ast.expr] = set()
    pending = [(file, value, 0)]
    while pending:
        owner, current, depth = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        for node in (n for n in ast.walk(current) if isinstance(n, ast.expr)):
            yield owner, node
            if depth >= _DEEPEST or not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
                continue
            pending += [(owner, v, depth + 1) for v in (*assigned_values(owner, node), *_unpacked(owner, node))]
            pending += [(caller, v, depth + 1) for caller, v in given_for_parameter(owner, node)]


def _unpacked(file: File, node: ast.expr) -> Iterator[ast.expr]:
    """What a name is one of several results of, or what is added to it."""
    scope = file.function(node)
    for store in file.names_by_id.get(node.id, ()) if isinstance(node, ast.Name) else ():
        parent = file.parents[store]
        if not isinstance(store.ctx, ast.Store) or file.function(store) is not scope:
            continue
        if isinstance(parent, (ast.Tuple, ast.List)) and isinstance(statement := file.parents[parent], ast.Assign):
            yield statement.value
        elif isinstance(parent, ast.AugAssign):
            yield parent.value


def _is_comparison(node: ast.expr) -> bool:
    if isinstance(node, ast.Compare):
        return not any(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in node.ops)
    return isinstance(node, ast.Call) and _last_name(node.func) in ("isnan", "isinf", "isfinite")


def _agrees(file: File, node: ast.expr) -> bool:
    """Whether ranks agree about a value: in the call that gives it, or in one that is made with it in its function."""
    if isinstance(node, ast.Call):
        return _is_or_calls(file, node, _AGREES)
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return False
    function, text = file.function(node), ast.unparse(node)
    others = (n for n in (file.names_by_id.get(node.id, ()) if isinstance(node, ast.Name) else file.nodes(ast.Attribute)))
    for other in others:
        if file.function(other) is not function or (isinstance(node, ast.Attribute) and ast.unparse(other) != text):
            continue
        around = next((a for a in file.ancestors(other) if isinstance(a, (ast.Call, ast.stmt))), None)
        if isinstance(around, ast.Call) and isinstance(file.parents[around], ast.Expr) and _is_or_calls(file, around, _AGREES):
            return True
    return False


def _measures(file: File, call: ast.Call) -> bool:
    """Whether a call gives a number that each rank has of its own: read off a tensor or a clock, or by an evaluation."""
    if _last_name(call.func) in _MEASURES:
        return True
    functions = [file.program.function_node(value) for value in file.program.callees(file, call)]
    names = (_last_name(n.func) for _, function in functions for n in ast.walk(function) if isinstance(n, ast.Call))
    return any(name in _EVALUATES for name in names)


def _compares_numbers(node: ast.expr) -> bool:
    """Whether a comparison is about something that is called a loss or a score."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], _ORDER):
        return False
    words = (_word(n) for side in (node.left, *node.comparators) for n in ast.walk(side))
    return any(word is not None and _NUMBER.search(word) for word in words)


def _word(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    return _last_name(node)


def _calls(file: File, node: ast.AST, wanted: re.Pattern[str]) -> bool:
    """Whether a call of such a name is made below a node, or in a function of the repository that is called there."""
    return any(_is_or_calls(file, call, wanted) for call in ast.walk(node) if isinstance(call, ast.Call))


def _is_or_calls(file: File, call: ast.Call, wanted: re.Pattern[str]) -> bool:
    if wanted.search(_last_name(call.func) or ""):
        return True
    functions = _functions_that_call(file.program, wanted)
    return any(file.program.function_node(value)[1] in functions for value in file.program.callees(file, call))


def _functions_that_call(program: Program, wanted: re.Pattern[str]) -> set[ast.AST]:
    """The functions of the repository with a call of such a name, and those that call them."""
    known = program.once(_Known).callers
    if wanted not in known:
        found: set[ast.AST] = set()
        pending: list[tuple[File, ast.AST]] = []
        for file in map(program.file, program.relevant_files()):
            pending += [(file, call) for call in file.nodes(ast.Call) if wanted.search(_last_name(call.func) or "")]
        while pending:
            file, node = pending.pop()
            function = file.function(node)
            if function is not None and function not in found:
                found.add(function)
                pending += program.callers(file, function)
        known[wanted] = found
    return known[wanted]


def _last_name(node: ast.AST) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
