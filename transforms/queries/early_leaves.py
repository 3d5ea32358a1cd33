"""Statements that let only some ranks go on behind them: an early return of the others, however deep it stands."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from weakref import WeakKeyDictionary

from .backwards import goes_backward
from .conditions import is_rank_condition
from .file import File

_ENDS = ("sys.exit", "exit", "quit", "os._exit")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.Module)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_known: WeakKeyDictionary[File, dict[ast.stmt, list[ast.stmt]]] = WeakKeyDictionary()


def leaves_of_some_ranks(file: File) -> dict[ast.stmt, list[ast.stmt]]:
    """The statements behind which, in their block, only some ranks go on; with those in them by which the others leave."""
    if file not in _known:
        found: dict[ast.stmt, list[ast.stmt]] = {}
        for leave in file.nodes(ast.Return, ast.Continue, ast.Break, ast.Expr):
            for statement in _left_by(file, leave) if _leaves(leave) and not _ends_training(file, leave) else ():
                ends_run = isinstance(leave, ast.Expr)  # by an exit
                if not (_is_conditional(file, leave, statement) and (ends_run or _trains_behind(file, statement))):
                    found.setdefault(statement, []).append(leave)
        _known[file] = found
    return _known[file]


def behind_leaves(file: File, test: ast.If) -> Iterator[ast.stmt]:
    """What some ranks alone come to, because the others leave by a test of the rank."""
    for statement, leaves in leaves_of_some_ranks(file).items():
        if any(test is around for leave in leaves for around in file.ancestors(leave)):
            block, index = file.block_of(statement)
            yield from block[index + 1 :]


def left_in_front(file: File, statement: ast.stmt) -> Iterator[ast.If]:
    """The tests of the rank in front of a statement, in its block, behind which a rank has left: it is missed from there on."""
    block, index = file.block_of(statement)
    for test in block[:index]:
        if isinstance(test, ast.If) and not test.orelse and _leaves(test.body[-1]) and is_rank_condition(file, test.test):
            yield test


def parts_ranks(file: File, around: ast.If | ast.While, inside: ast.AST) -> bool:
    """Whether a run has seen some ranks alone come to the branch of a statement that a place is in."""
    branch = around.body if any(inside is statement for statement in around.body) else around.orelse
    reaches = file.program.is_reached_by_some_ranks
    return isinstance(around, ast.If) and reaches(file, branch) and not reaches(file, [around])


def _left_by(file: File, leave: ast.stmt) -> Iterator[ast.stmt]:
    """The statements around a leave, innermost first, behind which the ranks that take it are missed."""
    parted = False
    inside: ast.AST = leave
    for around in file.ancestors(leave):
        if parted and isinstance(inside, ast.stmt):
            if all_leave([inside]):
                return
            yield inside
            if all_leave(file.block_of(inside)[0]):
                return  # whoever stayed here leaves later: no rank that came here goes on further out
        if isinstance(around, _FUNCTIONS) or (isinstance(around, _LOOPS) and isinstance(leave, (ast.Continue, ast.Break))):
            return
        if isinstance(around, ast.If) and (is_rank_condition(file, around.test) or parts_ranks(file, around, inside)):
            parted = True
        inside = around


def _ends_training(file: File, leave: ast.stmt) -> bool:
    """Whether it leaves a loop that trains: ranks that went on without the others would have waited for them in DDP too."""
    if isinstance(leave, ast.Continue):
        return False
    for around in file.ancestors(leave):
        if isinstance(around, _FUNCTIONS):
            return False
        if isinstance(around, _LOOPS):
            if goes_backward(file, around):
                return True
            if isinstance(leave, ast.Break):
                return False
    return False


def _is_conditional(file: File, leave: ast.stmt, statement: ast.stmt) -> bool:
    """Whether more than the test of the rank decides about a leave."""
    tests = []
    for around in (leave, *file.ancestors(leave)):
        if not isinstance(around, (ast.With, ast.AsyncWith)) and around is not leave:
            tests.append(around)
        if around is statement:
            break
    return len(tests) > 1 or any(not isinstance(t, ast.If) or _joins(t.test) for t in tests)


def _joins(test: ast.expr) -> bool:
    return isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)


def _trains_behind(file: File, statement: ast.stmt) -> bool:
    """Whether what stands behind trains: all ranks come there, and that some leave is for what goes wrong."""
    block, index = file.block_of(statement)
    return any(goes_backward(file, behind) for behind in block[index + 1 :])


def all_leave(block: Sequence[ast.stmt]) -> bool:
    """Whether no rank comes out at the end of a block."""
    last = block[-1] if block else None
    if isinstance(last, ast.If):
        return all_leave(last.body) and all_leave(last.orelse)
    if isinstance(last, (ast.With, ast.AsyncWith)):
        return all_leave(last.body)
    return isinstance(last, ast.Raise) or (isinstance(last, ast.stmt) and _leaves(last))


def _leaves(statement: ast.stmt) -> bool:
    if isinstance(statement, (ast.Return, ast.Continue, ast.Break)):
        return True
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Call) and ast.unparse(value.func) in _ENDS
