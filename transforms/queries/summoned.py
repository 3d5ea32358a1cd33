"""Places inside of FSDP1's summon_full_params, where the parameters of a model are whole."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..facts.symbols import FSDP1
from .arguments import handed_in
from .file import File


def summoned_around(file: File, node: ast.AST) -> Iterator[tuple[ast.With | ast.AsyncWith, ast.expr]]:
    """The contexts around a place in its function, innermost first, each with the model that is whole in it."""
    for around in file.ancestors(node):
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return
        for item in around.items if isinstance(around, (ast.With, ast.AsyncWith)) else ():
            call = item.context_expr
            if not isinstance(call, ast.Call):
                continue
            if call.args and file.external(call.func) == f"{FSDP1}.summon_full_params":
                yield around, call.args[0]  # type: ignore[misc]
            elif isinstance(call.func, ast.Attribute) and call.func.attr == "summon_full_params":
                yield around, call.args[0] if call.args else call.func.value  # type: ignore[misc]
            else:
                yield from ((around, model) for model in _summoned_by(file, call))  # type: ignore[misc]


def _summoned_by(file: File, call: ast.Call) -> Iterator[ast.expr]:
    """The models that are whole in a context which functions of the repository give, as the caller would write them."""
    for owner, function in map(file.program.function_node, file.program.callees(file, call)):
        for given in (r.value for r in owner.returns_of(function)):
            if not isinstance(given, ast.Call) or not given.args or owner.external(given.func) != f"{FSDP1}.summon_full_params":
                continue
            base: ast.expr = given.args[0]
            while isinstance(base, ast.Attribute):
                base = base.value
            if not isinstance(base, ast.Name):
                continue
            is_own = base.id == "self" and isinstance(call.func, ast.Attribute)
            handed = call.func.value if is_own else handed_in(owner, given, base.id, call)  # type: ignore[attr-defined]
            if handed is not None:
                rest = ast.unparse(given.args[0]).removeprefix(base.id)
                yield ast.parse(f"{ast.unparse(handed)}{rest}", mode="eval").body


def is_summoned(file: File, node: ast.AST, model: ast.expr) -> bool:
    """Whether a model is whole at a place: it, or what it is an attribute of, is what a context there is given."""
    text = f"{ast.unparse(model)}."
    return any(text.startswith(f"{ast.unparse(summoned)}.") for _, summoned in summoned_around(file, node))
