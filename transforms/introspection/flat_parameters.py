"""Members that only FSDP1's modules and their flat parameters have, and where they are read."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.symbols import FSDP1, FSDP_MODULE
from ..training.in_scope import means_a_model
from ..view import FileView
from .type_tests import type_test

FLAT: frozenset[str] = frozenset(
    {
        "_is_flat_param", "_fqns", "_shard_param_infos", "_param_infos", "_shared_param_infos", "_numels_with_padding",
        "_unpadded_unsharded_size", "_sharded_size", "_local_shard", "_full_param_padded", "_shard_numel_padded",
    }
)  # fmt: skip
"""Attributes of a flat parameter, which nothing else has."""

_OF_UNITS = frozenset({"params", "_handle", "_handles", "_streams", "sharding_strategy", "compute_device", "_has_params"})
"""Attributes of FSDP1's modules with names that others may have as well."""

RUNTIME = "torch.distributed.fsdp._runtime_utils"
"""The module of the functions that work on FSDP1's flat parameters."""

PRIVATE = frozenset({"_device_mesh", "_exec_order_data", "_all_handles", "_all_fsdp_states"})
"""Attributes of FSDP1's modules that a model which is called so has of nothing else."""


def reads(view: FileView, root: ast.AST | None = None) -> Iterator[ast.Attribute]:
    """Reads of such attributes in a file, or below a node."""
    nodes = view.nodes(ast.Attribute) if root is None else (n for n in ast.walk(root) if isinstance(n, ast.Attribute))
    for node in nodes:
        if not isinstance(node.ctx, ast.Load):
            continue
        if node.attr in FLAT or (node.attr == "_streams" and isinstance(node.value, ast.Attribute)):
            yield node  # model.head._streams; an object's own are self._streams
        elif node.attr in PRIVATE:
            if means_a_model(view.values(node.value), _last_name(node.value)):
                yield node
        elif node.attr in _OF_UNITS and isinstance(node.value, ast.Name) and _is_unit(view, node.value):
            yield node


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def raising_read(view: FileView, branch: ast.If) -> ast.Attribute | None:
    """A read of what only flat parameters have that a branch is sure to come to, whatever model it is given."""
    found = (read for statement in branch.body for read in reads(view, statement))
    return next((read for read in found if read.attr in FLAT and _is_reached(view, read, branch)), None)


def _is_reached(view: FileView, read: ast.Attribute, branch: ast.If) -> bool:
    """Whether nothing but loops over a model's own parts leads to a read, which passes over nothing but other modules."""
    child: ast.AST = read
    for ancestor in view.ancestors(read):
        if isinstance(child, ast.stmt):
            block, place = view.block_of(child)
            if not all(_goes_through(view, earlier) for earlier in block[:place]):
                return False
        if ancestor is branch:
            return True
        if isinstance(ancestor, ast.For):
            if child is not ancestor.iter and not (child in ancestor.body and _goes_over_parts(ancestor.iter)):
                return False
        elif isinstance(ancestor, _DECIDING) or (isinstance(ancestor, ast.Assert) and child is ancestor.msg):
            return False
        child = ancestor
    return False


_DECIDING = (
    ast.If, ast.IfExp, ast.BoolOp, ast.While, ast.Try, ast.comprehension, ast.ListComp, ast.SetComp, ast.DictComp,
    ast.GeneratorExp, ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.AsyncFor, ast.Match,
)  # fmt: skip
_PARTS = frozenset({"modules", "named_modules", "parameters", "named_parameters"})


def _goes_over_parts(over: ast.expr) -> bool:
    """``model.named_modules()``, ``unit.params``: a model has some, or none of that name."""
    if isinstance(over, ast.Call):
        return isinstance(over.func, ast.Attribute) and over.func.attr in _PARTS
    return isinstance(over, ast.Attribute) and over.attr in _OF_UNITS


def _goes_through(view: FileView, statement: ast.stmt) -> bool:
    """Whether what comes behind a statement is reached, for a unit at least."""
    leaving = list(_leaving(statement))
    if not leaving:
        return True
    test = statement.test if isinstance(statement, ast.If) and not statement.orelse else None
    if not isinstance(test, ast.UnaryOp) or not isinstance(test.op, ast.Not):
        return False
    found = type_test(view, test.operand)
    return found is not None and found.names <= {FSDP1, FSDP_MODULE} and all(isinstance(n, ast.Continue) for n in leaving)


def _leaving(node: ast.AST, inside: bool = False) -> Iterator[ast.AST]:
    """What leaves the block of a statement: returns, and what goes on with or ends a loop around it."""
    inside = inside or isinstance(node, (ast.For, ast.While))
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Return) or (isinstance(child, (ast.Continue, ast.Break)) and not inside):
            yield child
        elif not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from _leaving(child, inside)


def _is_unit(view: FileView, name: ast.Name) -> bool:
    """Whether a name is a unit of FSDP1 where it is read: a loop over the units binds it, or a test says so."""
    child: ast.AST = name
    for ancestor in view.ancestors(name):
        if isinstance(ancestor, ast.For) and child in ancestor.body:
            if _binds_units(view, ancestor.target, ancestor.iter, name.id):
                return True
        if isinstance(ancestor, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            if any(_binds_units(view, g.target, g.iter, name.id) for g in ancestor.generators):
                return True
            if any(_asks(view, test, name.id) for g in ancestor.generators for test in g.ifs):
                return True
        if isinstance(ancestor, ast.If) and child in ancestor.body and _asks(view, ancestor.test, name.id):
            return True
        if isinstance(ancestor, ast.BoolOp) and isinstance(ancestor.op, ast.And):
            if any(_asks(view, value, name.id) for value in ancestor.values):
                return True
        if isinstance(child, ast.stmt) and _left_before(view, child, name.id):
            return True
        if isinstance(ancestor, (ast.FunctionDef, ast.Lambda)):
            return False
        child = ancestor
    return False


def _left_before(view: FileView, statement: ast.stmt, name: str) -> bool:
    """``if not isinstance(module, FSDP): continue`` above a statement of the same block."""
    block, place = view.block_of(statement)
    for earlier in block[:place]:
        if isinstance(earlier, ast.If) and isinstance(earlier.test, ast.UnaryOp) and isinstance(earlier.test.op, ast.Not):
            if isinstance(earlier.body[-1], (ast.Continue, ast.Return)) and _asks(view, earlier.test.operand, name):
                return True
    return False


def _asks(view: FileView, test: ast.expr, name: str) -> bool:
    """``isinstance(name, FSDP)``, or a function that answers it, alone or beside other conditions."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_asks(view, value, name) for value in test.values)
    found = type_test(view, test)
    return found is not None and isinstance(found.subject, ast.Name) and found.subject.id == name and found.names == {FSDP1}


def _binds_units(view: FileView, target: ast.expr, over: ast.expr, name: str) -> bool:
    """Whether a loop over ``FSDP.fsdp_modules(model)``, or several of them side by side, binds a name."""
    if not any(isinstance(inner, ast.Name) and inner.id == name for inner in ast.walk(target)):
        return False
    if isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and over.func.id == "zip":
        return all(_lists_units(view, argument) for argument in over.args)
    return _lists_units(view, over)


def _lists_units(view: FileView, node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if view.external(node.func) == f"{FSDP1}.fsdp_modules":
        return True
    callees = view.program.callees(view, node)
    return bool(callees) and all(_answers_units(view, callee) for callee in callees)


def _answers_units(view: FileView, callee: object) -> bool:
    there, function = view.program.function_node(callee)  # pyright: ignore[reportArgumentType]
    returns = [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None]
    return len(returns) == 1 and isinstance(returns[0], ast.Call) and there.external(returns[0].func) == f"{FSDP1}.fsdp_modules"
