"""Whether optimizers may be built after an evaluation, when fully_shard still shows what it has gathered."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from ..flow.library import is_optimizer
from .file import File
from .program import Program

EVALUATIONS = r"no_grad|inference_mode|set_grad_enabled"
"""What stands in code that runs models without gradients."""
_EVALUATES = re.compile(r"_*(?:evaluate|validate|validation|eval_|run_eval|run_valid|do_eval|generate|sample)\w*")
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_DEEPEST = 2


def optimizers_follow_evaluations(program: Program, paths: Sequence[str]) -> bool:
    """Whether some optimizer is built in a loop, or below an evaluation in its function, in code that evaluates."""
    if not any(re.search(EVALUATIONS, program.text(path)) for path in paths):
        return False
    files = map(program.file, paths)
    made = ((file, call) for file in files for call in file.nodes(ast.Call) if is_optimizer(file.external(call.func) or ""))
    return any(_is_repeated(program, file, call, 0) or _is_below_evaluation(file, call) for file, call in made)


def _is_repeated(program: Program, file: File, node: ast.AST, depth: int) -> bool:
    """Whether a place may be reached again: in a loop, or in a function that is called in one."""
    for around in file.ancestors(node):
        if isinstance(around, _LOOPS):
            return True
        if isinstance(around, _FUNCTIONS):
            return depth < _DEEPEST and any(_is_repeated(program, *call, depth + 1) for call in program.callers(file, around))
    return False


def _is_below_evaluation(file: File, call: ast.Call) -> bool:
    """Whether an evaluation is called above a place in its function."""
    scope = file.function(call) or file.tree
    above = (n for n in ast.walk(scope) if isinstance(n, ast.Call) and n.lineno < call.lineno)
    own = (n for n in above if file.function(n) is file.function(call))
    return any(_EVALUATES.fullmatch(getattr(n.func, "attr", getattr(n.func, "id", ""))) for n in own)
