"""What raises by itself where it stays as it is and a model that FSDP2 sharded comes along."""

from __future__ import annotations

import ast

from ..analysis.symbols import FSDP1, WRAPPERS
from ..introspection.branch_chains import raises_otherwise
from ..sites import Site
from ..view import FileView

_RAISING = frozenset(
    f"{FSDP1}.{name}"
    for name in (
        "optim_state_dict", "full_optim_state_dict", "sharded_optim_state_dict", "optim_state_dict_to_load",
        "flatten_sharded_optim_state_dict", "shard_full_optim_state_dict", "scatter_full_optim_state_dict",
    )
)  # fmt: skip
"""Functions of FSDP1's class that raise when they are given another model."""


def is_loud(site: Site) -> bool:
    """Whether a site does nothing at run time, or raises before anything could come of it in silence.

    A ``state_dict_type`` context raises when it ends, since it finds no kind of state dict to go back to.
    """
    view, node = site.view, site.node
    if site.role in ("import", "annotation", "keyword") or site.symbol.partition("(")[0] in _RAISING:
        return True
    child = node
    for ancestor in view.ancestors(node):
        if isinstance(ancestor, ast.Assert) and _demands_wrapper(view, ancestor):
            return True
        if isinstance(ancestor, ast.If) and child not in ancestor.orelse and raises_otherwise(view, ancestor):
            return True
        if isinstance(ancestor, ast.With) and _is_under_context(view, ancestor):
            return True
        if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef)):
            asserts = [s for s in ancestor.body if isinstance(s, ast.Assert) and _demands_wrapper(view, s)]
            return child in ancestor.body and any(view.line(statement) < view.line(child) for statement in asserts)
        child = ancestor
    return False


def _is_under_context(view: FileView, statement: ast.With) -> bool:
    """``with FSDP.state_dict_type(…):``, whatever else it enters."""
    entered = [item.context_expr for item in statement.items]
    return any(isinstance(call, ast.Call) and view.external(call.func) == f"{FSDP1}.state_dict_type" for call in entered)


def _demands_wrapper(view: FileView, statement: ast.Assert) -> bool:
    """``assert isinstance(model, FSDP)``."""
    test = statement.test
    if not isinstance(test, ast.Call) or view.external(test.func) != "builtins.isinstance" or len(test.args) != 2:
        return False
    classes = test.args[1].elts if isinstance(test.args[1], ast.Tuple) else [test.args[1]]
    return all(view.external(cls) in WRAPPERS for cls in classes)
