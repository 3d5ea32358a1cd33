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
                                "get_world_size", "device_count", "is_available", "is_initialized", "float", "str",
                                "ArgumentParser", "parse_args", "parse_known_args", "add_argument", "safe_load"})  # fmt: skip
_DRAWS = frozenset({"random", "rand", "uniform", "randint", "randrange", "binomial", "bernoulli"})
_MEASURES = frozenset({"item", "time", "perf_counter", "monotonic", "time_ns"}) | _DRAWS
_AVERAGED = frozenset({"grad", "_scale", "get_scale"})
"""What DDP has averaged, and a gradient scaler's scale, which goes by what infinities these hold."""
_EVALUATES = frozenset({"item", "eval", "no_grad", "inference_mode"})
_AGREES = re.compile(r"all_?reduce|all_?gather|(?<!non_)broadcast|^reduce_\w+|^synchronize_\w+|^gather_for_metrics$|^compute$")
_TAKES_ALL = re.compile(rf"{_AGREES.pattern}|barrier|load_state_dict|^step$")
_NUMBER = re.compile(
    r"(?i)(^|_)(loss(es)?|acc(uracy)?\d?|scores?|metrics?|psnr|ssim|bleu|rouge|wer|cer|ppl|perplexity|f1|auc|m?iou|fid|r?mse"
    r"|nll|bpd|rewards?|top\d|error)(_|$)"
)
_COUNTER = re.compile(r"(?i)(^|_)(steps?|epochs?|iters?|iterations?|it|batch)(_?(num|idx|index|count))?$")
_ASKS_FOR_NUMBER = frozenset({"isnan", "isinf", "isfinite"})
_OF_ALL_ELEMENTS = frozenset({"any", "all", "item"})
_DEEPEST = 4


def answered_alike(file: File, test: ast.expr) -> Answer:
    """Whether all ranks answer a comparison alike: NO where it is about what each has measured and none told the others."""
    known = file.program.once(_Known).answers
    if test not in known:
        known[test] = Answer.YES  # where it is asked for on the way: ``if patience < 3: patience += 1``
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
    """What has been found out about tests, functions and files."""

    def __init__(self, _: Program) -> None:
        self.answers: dict[ast.expr, Answer] = {}
        self.callers: dict[re.Pattern[str], set[ast.AST]] = {}
        self.unpacked: dict[File, dict[tuple[ast.AST | None, str], list[ast.expr]]] = {}
        self.evaluates: dict[ast.AST, bool] = {}
        self.agreed: dict[File, set[tuple[ast.AST | None, str]]] = {}


def _answered_alike(file: File, test: ast.expr) -> Answer:
    compared = list(_comparisons(file, test, 0))
    parts = [part for owner, comparison in compared for part in _slice(owner, comparison)]
    if not parts or any(_agrees(owner, node) for owner, node, _ in parts):
        return Answer.YES
    calls = [part for part in parts if isinstance(part[1], ast.Call) and _last_name(part[1].func) not in _SAME_ON_ALL_RANKS]
    if any(is_value and _measures(owner, call) for owner, call, is_value in calls):  # type: ignore[arg-type]
        return Answer.NO
    if any(_compares_numbers(node) for _, node in compared):
        return Answer.NO
    if any(is_value and _is_set_by_measure(owner, node) for owner, node, is_value in parts):
        return Answer.NO
    return Answer.UNKNOWN if any(is_value for _, _, is_value in calls) else Answer.YES


def _comparisons(file: File, test: ast.expr, depth: int) -> Iterator[tuple[File, ast.expr]]:
    """The comparisons of numbers that decide a test: itself, its parts, what its names were assigned or callers hand in."""
    if isinstance(test, ast.Compare):
        is_of_objects = any(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in test.ops)
        if not is_of_objects and not any(_counts(file, side) for side in (test.left, *test.comparators)):
            yield file, test
        return
    further: list[tuple[File, ast.expr]] = []
    if isinstance(test, ast.BoolOp):
        further = [(file, value) for value in test.values]
    elif isinstance(test, (ast.UnaryOp, ast.NamedExpr, ast.IfExp)):
        further = [(file, child) for child in ast.iter_child_nodes(test) if isinstance(child, ast.expr)]
    elif isinstance(test, ast.Call):
        if _last_name(test.func) in _ASKS_FOR_NUMBER:
            yield file, test
        if isinstance(test.func, ast.Attribute) and test.func.attr in _OF_ALL_ELEMENTS:  # isnan(scores).any()
            further = [(file, test.func.value)]
        for owner, function in map(file.program.function_node, file.program.callees(file, test)):
            further += [(owner, n.value) for n in owner.returns_of(function) if n.value is not None and depth < _DEEPEST]
    elif isinstance(test, (ast.Name, ast.Attribute)) and depth < _DEEPEST:
        further = [(file, value) for value in assigned_values(file, test)]
        further += given_for_parameter(file, test)
    for owner, value in further:
        yield from _comparisons(owner, value, depth + 1)


def _counts(file: File, node: ast.AST, depth: int = 0) -> bool:
    """Whether a value counts what all ranks do side by side: by name, a remainder, or what is added up in steps."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Mod) or _counts(file, node.left, depth) or _counts(file, node.right, depth)
    if isinstance(node, ast.Call) and _last_name(node.func) in _SAME_ON_ALL_RANKS:
        return any(_counts(file, given, depth) for given in node.args)
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return False
    if _COUNTER.search(_last_name(node) or "") or any(_counts_on(file, n) for n in file.bindings.get(ast.unparse(node), ())):
        return True
    return depth < _DEEPEST and any(_counts(owner, value, depth + 1) for owner, value in given_for_parameter(file, node))


def _counts_on(file: File, target: ast.AST) -> bool:
    """Whether ``step += 1`` is done there each time: behind no test but of another count, as that of accumulated batches."""
    statement = file.parents[target]
    if not (isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add)):
        return False
    if not isinstance(statement.value, ast.Constant):
        return False
    tests = (around.test for around in file.ancestors(statement) if isinstance(around, (ast.If, ast.While)))
    return all(any(isinstance(n, ast.Mod) for n in ast.walk(test)) for test in tests)


def _slice(file: File, value: ast.expr) -> Iterator[tuple[File, ast.expr, bool]]:
    """The expressions that a value is made of: its own parts, what names were assigned, what callers hand in or functions return.

    The last entry is False for what makes an object that the value is read off.
    """
    seen: set[ast.expr] = set()
    pending = [(file, value, 0, True)]
    while pending:
        owner, current, depth, is_value = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        for node in _read_in(current):
            yield owner, node, is_value
            if isinstance(node, ast.Call) and is_value and depth < _DEEPEST:
                pending += [(other, v, depth + 1, True) for other, v in _returned(owner, node)]
            if depth >= _DEEPEST or not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
                continue
            is_own = is_value and not isinstance(owner.parents.get(node), ast.Attribute)
            further = [(owner, v) for v in (*assigned_values(owner, node), *_unpacked(owner, node))]
            pending += [(other, v, depth + 1, is_own) for other, v in (*further, *given_for_parameter(owner, node))]


def _is_set_by_measure(file: File, node: ast.expr) -> bool:
    """Whether a number is assigned behind a test of what each rank measured: ``patience += 1``."""
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return False
    function = file.function(node) if isinstance(node, ast.Name) else None
    for target in file.bindings.get(ast.unparse(node), ()):
        for around in file.ancestors(target) if function in (None, file.function(target)) else ():
            if isinstance(around, ast.If) and answered_alike(file, around.test) is Answer.NO:
                return True
    return False


def _returned(file: File, call: ast.Call) -> Iterator[tuple[File, ast.expr]]:
    """What functions of the repository give that a call reaches."""
    for owner, function in map(file.program.function_node, file.program.callees(file, call)):
        yield from ((owner, n.value) for n in owner.returns_of(function) if n.value is not None)


def _read_in(value: ast.AST) -> Iterator[ast.expr]:
    """An expression and its parts, but for what only its length is asked of."""
    if isinstance(value, ast.expr):
        yield value
    if not (isinstance(value, ast.Call) and _last_name(value.func) == "len"):
        for child in ast.iter_child_nodes(value):
            yield from _read_in(child)


def _unpacked(file: File, node: ast.expr) -> list[ast.expr]:
    """What a name is one of several results of, or what is added to it."""
    known = file.program.once(_Known).unpacked
    if file not in known:
        known[file] = _unpacked_in(file)
    return known[file].get((file.function(node), node.id), []) if isinstance(node, ast.Name) else []


def _unpacked_in(file: File) -> dict[tuple[ast.AST | None, str], list[ast.expr]]:
    found: dict[tuple[ast.AST | None, str], list[ast.expr]] = {}
    for statement in file.nodes(ast.Assign, ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in (t for t in targets if not (isinstance(t, ast.Name) and isinstance(statement, ast.Assign))):
            for name in (n for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)):
                found.setdefault((file.function(statement), name.id), []).append(statement.value)
    return found


def _agrees(file: File, node: ast.expr) -> bool:
    """Whether ranks agree about a value: in the call that gives it, or in one that changes it, in its function."""
    if isinstance(node, ast.Call):
        return _AGREES.search(_last_name(node.func) or "") is not None
    return isinstance(node, (ast.Name, ast.Attribute)) and (file.function(node), ast.unparse(node)) in _agreed_in(file)


def _agreed_in(file: File) -> set[tuple[ast.AST | None, str]]:
    """The names and attributes that calls by which ranks agree are made with, for what they change: each with its function."""
    known = file.program.once(_Known).agreed
    if file not in known:
        found = known[file] = set()  # filled below: files may call each other
        for call in (n.value for n in file.nodes(ast.Expr) if isinstance(n.value, ast.Call)):
            for given in _agreed_arguments(file, call):
                named = (n for n in ast.walk(given) if isinstance(n, (ast.Name, ast.Attribute)))
                found |= {(file.function(call), ast.unparse(n)) for n in named}
    return known[file]


def _agreed_arguments(file: File, call: ast.Call) -> Iterator[ast.expr]:
    """What a call lets ranks agree about: all that it is made with, or what its function hands on to such a call."""
    if _AGREES.search(_last_name(call.func) or ""):
        yield from ([call.func.value] if isinstance(call.func, ast.Attribute) else [])
        yield from (*call.args, *(keyword.value for keyword in call.keywords))
        return
    for owner, function in map(file.program.function_node, file.program.callees(file, call)):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        agreed = {name for around, name in _agreed_in(owner) if around is function}
        names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        if names[:1] in (["self"], ["cls"]) and isinstance(call.func, ast.Attribute):
            yield from [call.func.value] if any(name.partition(".")[0] == names[0] for name in agreed) else []
            names = names[1:]
        given = [*zip(names, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
        yield from (value for name, value in given if name in agreed)


def _measures(file: File, call: ast.Call) -> bool:
    """Whether a call gives a number that each rank has of its own: read off a tensor or a clock, or by an evaluation."""
    if _last_name(call.func) in _ASKS_FOR_NUMBER:
        made_of = (node for given in call.args for _, node, is_value in _slice(file, given) if is_value)
        return not any(map(_is_averaged, made_of))
    if _last_name(call.func) in _MEASURES:
        return not any(isinstance(n, ast.expr) and _is_averaged(n) for n in ast.walk(call))
    functions = [file.program.function_node(value)[1] for value in file.program.callees(file, call)]
    return any(_evaluates(file.program, function) for function in functions)


def _is_averaged(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in _AVERAGED


def _evaluates(program: Program, function: ast.AST) -> bool:
    known = program.once(_Known).evaluates
    if function not in known:
        names = (_last_name(n.func) for n in ast.walk(function) if isinstance(n, ast.Call))
        known[function] = any(name in _EVALUATES for name in names)
    return known[function]


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
    """Whether a call of such a name is made below a node, or in each function of the repository that may be called there."""
    return any(_is_or_calls(file, call, wanted) for call in ast.walk(node) if isinstance(call, ast.Call))


def _is_or_calls(file: File, call: ast.Call, wanted: re.Pattern[str]) -> bool:
    if wanted.search(_last_name(call.func) or ""):
        return True
    functions, callees = _functions_that_call(file.program, wanted), file.program.callees(file, call)
    return bool(callees) and all(file.program.function_node(value)[1] in functions for value in callees)


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
