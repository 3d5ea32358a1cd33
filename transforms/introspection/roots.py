"""The roots among the units of a model: FSDP1 answers which they are, FSDP2 keeps it to itself."""

from __future__ import annotations

import ast

from ..analysis.scopes import dotted_path
from ..migration import Migration
from ..rule import Outcome
from ..text.definitions import defined_before
from ..training.conditions import FSDP_MODULE
from ..view import FileView

_HELPERS = ("is_root", "is_root_unit", "no_unit_holds")
_HELPER = '''\
def {name}(module, model):
    """Whether no other sharded module of the model holds this one."""
    return not any(
        isinstance(other, {fsdp_module}) and other is not module and module in other.modules()
        for other in model.modules()
    )
'''


def model_of_loop(view: FileView, name: ast.Name) -> ast.expr | None:
    """``model``, where a loop over ``model.modules()`` or ``model.named_modules()`` binds a name."""
    for ancestor in view.ancestors(name):
        loops = [ancestor] if isinstance(ancestor, ast.For) else getattr(ancestor, "generators", [])
        for loop in loops:
            if any(isinstance(node, ast.Name) and node.id == name.id for node in ast.walk(loop.target)):
                return _model(loop.target, loop.iter, name.id)
        if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return None
    return None


def _model(target: ast.expr, over: ast.expr, name: str) -> ast.expr | None:
    if not isinstance(over, ast.Call) or over.args or over.keywords or not isinstance(over.func, ast.Attribute):
        return None
    if over.func.attr == "named_modules" and isinstance(target, ast.Tuple):
        target = target.elts[-1]
    elif over.func.attr != "modules":
        return None
    is_module = isinstance(target, ast.Name) and target.id == name
    return over.func.value if is_module and dotted_path(over.func.value) is not None else None


def define_is_root(migration: Migration, view: FileView, node: ast.AST, outcome: Outcome) -> str:
    """Defines the function that tells whether a unit is a root, once in the file around a node; returns its name."""
    taken = {node.name for node in view.nodes(ast.FunctionDef, ast.ClassDef)} | {node.id for node in view.nodes(ast.Name)}
    name = next(name for name in _HELPERS if name not in taken)
    text = _HELPER.format(name=name, fsdp_module=migration.use(outcome, view, FSDP_MODULE, view.tree))
    place = next(s for s in view.tree.body if isinstance(s, _DEFINITIONS) or node in ast.walk(s))
    outcome.patches.append(defined_before(view, place, (text,), "FSDP2 does not say which of its units are roots"))
    return name


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
