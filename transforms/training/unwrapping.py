"""Unwrapping: ``model.module`` and the tests that decide whether it is needed. With FSDP2 the model is itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.scopes import dotted_path
from ..analysis.symbols import DATA_PARALLEL, DDP, FSDP1
from ..analysis.values import Opaque, Value
from ..keeping import other_wrappers
from ..members import UNIQUE_MEMBERS
from ..migration import Migration
from ..sites import Site
from ..view import FileView
from .conditions import FSDP_MODULE
from .passes import outside_name

WRAPPERS = frozenset({FSDP1, DDP})


def may_be_data_parallel(values: tuple[Value, ...] | list[Value]) -> bool:
    """Whether ``torch.nn.DataParallel``, which keeps its ``.module``, is among what a receiver may be."""
    return any(isinstance(v, Opaque) and v.name in DATA_PARALLEL for v in values)


def tests_around(view: FileView, node: ast.AST) -> Iterator[tuple[ast.If | ast.IfExp | ast.While, bool]]:
    """The branches around a node, innermost first, and whether it stands where the test is true."""
    child = node
    for ancestor in view.ancestors(node):
        if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return
        if isinstance(ancestor, (ast.If, ast.While)) and child is not ancestor.test:
            yield ancestor, child in ancestor.body
        elif isinstance(ancestor, ast.IfExp) and child is not ancestor.test:
            yield ancestor, child is ancestor.body
        child = ancestor


def only_unwraps(branch: ast.If | ast.IfExp | ast.While) -> bool:
    """Whether a branch takes wrappers off, and does nothing with what only they can do."""
    inside = branch.body if isinstance(branch.body, list) else [branch.body]
    read = {n.attr for child in inside for n in ast.walk(child) if isinstance(n, ast.Attribute)}
    return "module" in read and not read & UNIQUE_MEMBERS


def is_unwrap_test(migration: Migration, view: FileView, test: ast.expr, receiver: str) -> bool:
    """Whether a test asks if ``receiver`` is a wrapper, and is false for an FSDP2 model once it is migrated.

    ``hasattr(model, "module")`` is, and so is a type test that names DataParallel (its wrappers stay, the others
    are taken out of it), directly or in a function of the repository.
    """
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        return all(is_unwrap_test(migration, view, value, receiver) for value in test.values)
    if isinstance(test, ast.BoolOp):
        return any(is_unwrap_test(migration, view, value, receiver) for value in test.values)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.In, ast.Eq, ast.Is)):
        asked = type_argument(view, test.left)
        return asked == receiver and names_data_parallel(view, test.comparators[0])
    if not isinstance(test, ast.Call) or not test.args:
        return False
    name = outside_name(view, test.func)
    if dotted_path(test.args[0]) != receiver:
        return False
    if name == "builtins.hasattr":
        return len(test.args) > 1 and isinstance(test.args[1], ast.Constant) and test.args[1].value == "module"
    if name in ("builtins.isinstance", "builtins.issubclass"):
        return names_data_parallel(view, test.args[1])
    return any(_returns_unwrap_test(migration, callee) for callee in migration.program.callees(view, test))


def _returns_unwrap_test(migration: Migration, callee: object) -> bool:
    view, node = migration.program.function_node(callee)  # pyright: ignore[reportArgumentType]
    arguments = getattr(getattr(node, "args", None), "args", [])
    if not isinstance(node, ast.FunctionDef) or not arguments:
        return False
    returns = [n.value for n in ast.walk(node) if isinstance(n, ast.Return) and n.value is not None]
    return bool(returns) and all(is_unwrap_test(migration, view, value, arguments[-1].arg) for value in returns)


def type_argument(view: FileView, node: ast.expr) -> str | None:
    """``x`` in ``type(x)`` and ``x.__class__``."""
    if isinstance(node, ast.Call) and outside_name(view, node.func) == "builtins.type" and len(node.args) == 1:
        return dotted_path(node.args[0])
    return dotted_path(node.value) if isinstance(node, ast.Attribute) and node.attr == "__class__" else None


def names_data_parallel(view: FileView, classes: ast.expr) -> bool:
    """Whether a type test names DataParallel, and is not true for FSDP2 models as it stands."""
    names = {outside_name(view, node) for node in ast.walk(classes) if isinstance(node, (ast.Name, ast.Attribute))}
    return bool(names & other_wrappers(view.program)) and FSDP_MODULE not in names


def has_wrapper_of_its_own(migration: Migration) -> bool:
    """Whether the repository holds an FSDP of its own (FairScale's, say), which sets ``_fsdp_wrapped_module``."""
    stores = (store for file in migration.program.files for store in file.stores)
    return migration.once("own_wrapper", None, lambda: any(store[1] == "_fsdp_wrapped_module" for store in stores))


def unwrapped_path(site: Site) -> str | None:
    """The path of a site's receiver, where it has one."""
    return dotted_path(site.node.value) if isinstance(site.node, ast.Attribute) else None
