"""What reads a parameter that had no dimension: what computes with it takes its element, the rest takes it as it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..analysis.values import Annotated, ClassValue, Instance, Wrapped
from ..migration import Migration
from ..view import FileView
from .scalars import Scalar

_ASKED = frozenset({"requires_grad", "grad", "dtype", "device", "is_leaf", "is_cuda", "shape", "ndim", "name"})
_TAKES_ONE = frozenset({"item", "numel", "dim", "size", "requires_grad_", "register_hook", "register_post_accumulate_grad_hook"})
"""Methods that do the same for a tensor of one element as for one without dimensions."""
_FUNCTIONS = frozenset(f"builtins.{name}" for name in ("float", "int", "isinstance", "id", "print", "type", "hasattr", "repr"))
_COLLECTS = frozenset({"append", "extend", "add", "insert"})


@dataclass
class Uses:
    """The places that read a parameter."""

    computed: list[tuple[FileView, ast.Attribute]] = field(default_factory=list)
    unclear: list[tuple[FileView, ast.AST]] = field(default_factory=list)


def uses_of(migration: Migration, scalar: Scalar) -> Uses:
    """What becomes of every read of a parameter, through ``self`` and through what may hold the model."""
    found = Uses()
    name = scalar.name
    if name is None:
        return found
    related = frozenset(_related(migration, scalar))
    for view in migration.program.views_with(name):
        for node in view.nodes(ast.Attribute):
            if node.attr != name:
                continue
            if not _is_ours(migration, scalar, view, node, related):
                continue
            if not isinstance(node.ctx, ast.Load):
                if not _defines(view, node):
                    found.unclear.append((view, node))
                continue
            kind = _kind(view, node)
            if kind == "computed" and _is_in_module(view, node):
                found.computed.append((view, node))
            elif kind != "kept":
                found.unclear.append((view, node))
    return found


def _related(migration: Migration, scalar: Scalar) -> Iterator[ClassValue]:
    """The class of a parameter, with those that it derives from and those that derive from it."""
    flow = migration.program.flow
    owners = [value for value in scalar.view.values(scalar.owner) if isinstance(value, ClassValue)]
    classes = [value for value in flow.values if isinstance(value, ClassValue)]
    for owner in owners:
        lineage = flow.ancestors(owner)
        yield from (cls for cls in classes if cls in lineage or owner in flow.ancestors(cls))


def _is_ours(
    migration: Migration, scalar: Scalar, view: FileView, node: ast.Attribute, related: frozenset[ClassValue]
) -> bool:
    """Whether an attribute may be the parameter's."""
    if isinstance(node.value, ast.Name) and node.value.id == "self":
        around = view.enclosing_class(node)
        return around is not None and any(value in related for value in view.values(around))
    values = view.values(node.value)
    return any(
        (isinstance(value, Instance) and value.cls in related)
        or (isinstance(value, (Wrapped, Annotated))
        and migration.groups.of([value]) is scalar.group)
        for value in values
    )


def _is_in_module(view: FileView, node: ast.Attribute) -> bool:
    """Whether a read stands in a method of a module, which runs while parameters are gathered, and starts from ``self``."""
    root: ast.expr = node
    while isinstance(root, (ast.Attribute, ast.Subscript)):
        root = root.value
    function, around = view.function(node), view.enclosing_class(node)
    while isinstance(function, ast.Lambda):
        function = view.function(function)
    own = isinstance(root, ast.Name) and root.id == "self"
    return own and around is not None and getattr(function, "name", "__init__") != "__init__"


def _defines(view: FileView, node: ast.Attribute) -> bool:
    """Whether an assignment gives the attribute a parameter or None."""
    statement = view.parents[node]
    value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
    parts = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
    return all(
        (isinstance(part, ast.Constant) and part.value is None)
        or (isinstance(part, ast.Call) and ast.unparse(part.func).endswith("Parameter"))
        for part in parts
    )


def _kind(view: FileView, node: ast.expr) -> str:
    """``computed``, ``kept``, or ``unclear`` for the use of a value in its surroundings."""
    parent = view.parents[node]
    if isinstance(parent, ast.Attribute):
        return _kind_of_member(view, parent)
    if isinstance(parent, ast.keyword):
        return _kind_of_argument(view, view.parents[parent], parent.arg)
    if isinstance(parent, ast.Call):
        return _kind_of_argument(view, parent)
    if isinstance(parent, ast.Compare):
        identity = all(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in parent.ops)
        return "kept" if identity else "computed"
    if isinstance(parent, (ast.BinOp, ast.UnaryOp)):
        return "kept" if _ends_as_a_number(view, parent) else "computed"
    if isinstance(parent, (ast.IfExp, ast.BoolOp)):
        return "kept" if isinstance(parent, ast.IfExp) and node is parent.test else _kind(view, parent)
    if isinstance(parent, (ast.If, ast.While, ast.Assert, ast.Expr, ast.FormattedValue, ast.Yield, ast.Delete)):
        return "kept"
    if isinstance(parent, (ast.List, ast.Set)):
        around = view.parents[parent]
        return "computed" if isinstance(around, ast.Call) and _is_of_torch(view, around) else "kept"
    if isinstance(parent, ast.Dict):
        keys = [key for key, value in zip(parent.keys, parent.values, strict=True) if value is node]
        return "kept" if any(isinstance(key, ast.Constant) and key.value == "params" for key in keys) else "computed"
    if isinstance(parent, ast.AugAssign) and node is parent.value:
        return "computed"
    if isinstance(parent, (ast.Return, ast.Assign, ast.AnnAssign, ast.Tuple, ast.NamedExpr)):
        return "computed"
    return "unclear"


def _kind_of_member(view: FileView, member: ast.Attribute) -> str:
    call = view.parents[member]
    if isinstance(call, ast.Call) and call.func is member:
        if member.attr in _TAKES_ONE:
            return "kept"
        if member.attr.endswith("_"):
            return "kept" if isinstance(view.parents[call], ast.Expr) else "unclear"
        return "kept" if _ends_as_a_number(view, call) else "computed"
    if member.attr == "data":
        # What is assigned to the data of a parameter takes its place whole.
        replaced = isinstance(member.ctx, ast.Store) or _is_assigned_to_data(view, member)
        return "unclear" if replaced else _kind(view, member)
    return "kept" if member.attr in _ASKED else "unclear"


def _is_assigned_to_data(view: FileView, node: ast.AST) -> bool:
    statement = view.statement(node)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(isinstance(target, ast.Attribute) and target.attr == "data" for target in targets)


def _kind_of_argument(view: FileView, call: ast.AST, keyword: str | None = None) -> str:
    if not isinstance(call, ast.Call):
        return "unclear"
    name = view.external(call.func) or ""
    if name in _FUNCTIONS or name.startswith(("torch.nn.init.", "torch.optim.")) or keyword == "params":
        return "kept"
    if isinstance(call.func, ast.Attribute) and call.func.attr in _COLLECTS:
        return "kept"
    return "kept" if _is_of_torch(view, call) and _ends_as_a_number(view, call) else "computed"


def _is_of_torch(view: FileView, call: ast.Call) -> bool:
    return (view.external(call.func) or "").startswith("torch.")


def _ends_as_a_number(view: FileView, node: ast.expr) -> bool:
    """Whether an expression does nothing more than make a Python number: ``….exp().item()``."""
    parent = view.parents[node]
    if isinstance(parent, ast.Attribute) and isinstance(call := view.parents[parent], ast.Call) and call.func is parent:
        return parent.attr == "item" or _ends_as_a_number(view, call)
    if isinstance(parent, ast.Call) and node in parent.args:
        name = view.external(parent.func)
        return name in ("builtins.float", "builtins.int") or (_is_of_torch(view, parent) and _ends_as_a_number(view, parent))
    return isinstance(parent, (ast.BinOp, ast.UnaryOp)) and _ends_as_a_number(view, parent)
