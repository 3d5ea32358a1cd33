"""Whether optimizers may be built after an evaluation, when fully_shard still shows what it has gathered."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from ..flow.library import is_optimizer
from .file import File
from .program import Program
from .sharding import ShardingQueries

EVALUATIONS = r"no_grad|inference_mode|set_grad_enabled"
"""What stands in code that runs models without gradients."""
_EVALUATES = re.compile(r"_*(?:evaluate|validate|validation|eval_|run_eval|run_valid|do_eval|generate|sample)\w*")
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_DEEPEST = 2


def optimizers_follow_evaluations(program: Program, paths: Sequence[str], sharding: ShardingQueries) -> bool:
    """Whether some optimizer is built in a loop, or below an evaluation, in code that evaluates."""
    if not any(re.search(EVALUATIONS, program.text(path)) for path in paths):
        return False
    files = map(program.file, paths)
    made = ((file, call) for file in files for call in file.nodes(ast.Call) if is_optimizer(file.external(call.func) or ""))
    return any(_is_repeated(program, file, call, 0) or _is_below_evaluation(sharding, file, call, 0) for file, call in made)


def _is_repeated(program: Program, file: File, node: ast.AST, depth: int) -> bool:
    """Whether a place may be reached again: in a loop, or in a function that is called in one."""
    for around in file.ancestors(node):
        if isinstance(around, _LOOPS):
            return True
        if isinstance(around, _FUNCTIONS):
            return depth < _DEEPEST and any(_is_repeated(program, *call, depth + 1) for call in program.callers(file, around))
    return False


def _is_below_evaluation(sharding: ShardingQueries, file: File, place: ast.Call, depth: int) -> bool:
    """Whether a model is evaluated above a place, in its function or in those that call it."""
    scope = file.function(place)
    for call in file.nodes(ast.Call):
        if call.lineno < place.lineno and file.function(call) is scope and _evaluates(sharding, file, call):
            return True
    callers = sharding.program.callers(file, scope) if scope is not None and depth < _DEEPEST else ()
    return any(_is_below_evaluation(sharding, *caller, depth + 1) for caller in callers)


def _evaluates(sharding: ShardingQueries, file: File, call: ast.Call) -> bool:
    """Whether a call may run a sharded model without gradients."""
    if _EVALUATES.fullmatch(getattr(call.func, "attr", getattr(call.func, "id", ""))):
        return True
    given = [call.func, *call.args, *(keyword.value for keyword in call.keywords)]
    if isinstance(call.func, ast.Attribute):
        given.append(call.func.value)
    if not any(sharding.of(file, value).wrappers for value in given):
        return False
    contexts = (item for a in file.ancestors(call) if isinstance(a, (ast.With, ast.AsyncWith)) for item in a.items)
    if any(re.search(EVALUATIONS, ast.unparse(item)) for item in contexts):
        return True
    functions = (sharding.program.function_node(function)[1] for function in sharding.program.callees(file, call))
    return any(re.search(EVALUATIONS, ast.unparse(function)) for function in functions)
