"""Models that were in DDP and that ranks may call a different number of times before one backward: DDP's forwards are local."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .answers import Sharding
from .backwards import goes_backward, is_without_gradients
from .file import File
from .module_forwards import is_in_module
from .sharding import ShardingQueries

_OF_ALL = frozenset({"all", "any"})
_AGREES = re.compile(r"all_?reduce|all_?gather|broadcast")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def called_in_uneven_loops(file: File, sharding: ShardingQueries) -> Iterator[tuple[ast.Call, Sharding]]:
    """The first call of a model with gradients in each loop that is left by what a rank has computed: `if ended.all(): break`.

    Loops with a backward in them are even, as the old wrapper needed them to be.
    """
    for loop in file.nodes(ast.For, ast.While):
        if not _is_left_by_data(file, loop) or is_in_module(file, loop) or goes_backward(file, loop):
            continue
        for call in (n for n in ast.walk(loop) if isinstance(n, ast.Call)):
            found = sharding.of_called(file, call)
            if found.wrappers == {"ddp"} and not _is_evaluated(file, call):
                yield call, found
                break


def _is_left_by_data(file: File, loop: ast.For | ast.While) -> bool:
    tests = [loop.test] if isinstance(loop, ast.While) else []
    for node in _inside(loop):
        if isinstance(node, ast.If) and isinstance(node.body[-1], (ast.Break, ast.Return)):
            tests.append(node.test)
    asks = any(isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in _OF_ALL and not n.args
               for test in tests for n in ast.walk(test))  # fmt: skip
    return asks and _AGREES.search(ast.unparse(file.function(loop) or loop)) is None


def _inside(loop: ast.AST) -> Iterator[ast.AST]:
    """What stands in a loop, but for functions and further loops."""
    for node in ast.iter_child_nodes(loop):
        if not isinstance(node, (*_FUNCTIONS, ast.For, ast.While)):
            yield node
            yield from _inside(node)


def _is_evaluated(file: File, call: ast.Call) -> bool:
    """Whether no gradients are taken at a call, here or in all that call its function."""
    function = file.function(call)
    callers = list(file.program.callers(file, function)) if function is not None else []
    return is_without_gradients(file, call) or (bool(callers) and all(is_without_gradients(*caller) for caller in callers))
