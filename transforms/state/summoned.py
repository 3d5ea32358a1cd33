"""What the body of ``with FSDP.summon_full_params(model):`` does with the whole parameters."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from ..analysis.values import Annotated, Derived, Value, Wrapped
from ..groups import Group, Groups
from ..program import owner_of
from ..view import FileView

_SAFE_READS = frozenset(
    {"numel", "nelement", "element_size", "dim", "ndim", "size", "shape", "stride", "dtype", "device", "requires_grad",
     "is_meta"}
)  # fmt: skip
"""What a sharded parameter answers as the whole one would."""

_HARMLESS = frozenset({"config", "device", "dtype", "training", "module"})


_RUNS = frozenset({"forward", "generate", "train", "eval"})
_OF_SHARDS = _RUNS | frozenset(
    {"parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules",
     "children", "named_children", "state_dict", "load_state_dict", "save_pretrained", "zero_grad",
     "requires_grad_", "items", "values", "keys"}
)  # fmt: skip
"""Methods of modules that run on shards as they do on whole parameters, or have a rule of their own."""


@dataclass
class Summoned:
    """The uses found. ``tensors`` are reads that need the whole parameter; the others are reasons to stop."""

    tensors: list[ast.expr] = field(default_factory=list)
    writes: list[ast.AST] = field(default_factory=list)
    unclear: list[ast.AST] = field(default_factory=list)


def uses_of_parameters(groups: Groups, view: FileView, block: ast.With, group: Group | None) -> Summoned:
    """Looks at every mention of a parameter of the group in the body of a block."""
    found = Summoned()
    labels = _labels(block.body)
    models = models_of(block)
    for statement in block.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node.id in labels:
                continue
            if isinstance(node, (ast.Name, ast.Attribute)) and ast.dump(node) in models:
                found.unclear += [node] if _is_stranger_at_work(view, node, group) else []
            elif isinstance(node, (ast.Attribute, ast.Subscript)) and _looks_inside(view, node, group):
                found.unclear.append(node)
            elif isinstance(node, (ast.Name, ast.Attribute)) and _is_parameter(groups, view, node, group):
                _classify(view, node, found)
            elif isinstance(node, ast.Call):
                _classify_call(view, node, group, models, found)
    return found


def _is_stranger_at_work(view: FileView, node: ast.expr, group: Group | None) -> bool:
    """Whether a model that is summoned, and of whose parameters nothing is known, does more than run."""
    parent = view.parents[node]
    runs = isinstance(parent, ast.Attribute) and (parent.attr in _RUNS or parent.attr in _HARMLESS)
    is_called = isinstance(parent, ast.Call) and parent.func is node
    return not _is_model(view, node, group) and not runs and not is_called


def _looks_inside(view: FileView, node: ast.Attribute | ast.Subscript, group: Group | None) -> bool:
    """Whether a part of the model, or of one of its modules, is read that may be a parameter or a submodule."""
    if isinstance(node, ast.Subscript):
        return _holds_parameters(view, node.value, group)
    if node.attr in _HARMLESS or _is_model(view, node, group):
        return False
    parent = view.parents[node]
    is_called = isinstance(parent, ast.Call) and parent.func is node
    if _is_model(view, node.value, group):
        return node.attr == "apply" if is_called else True
    is_module = any(isinstance(v, Derived) and v.kind == "modules" for v in view.values(node.value))
    return is_module and not is_called and node.attr not in ("weight", "bias")


def _labels(body: list[ast.stmt]) -> set[str]:
    """Names of loop variables that hold the name, not the parameter: ``for name, param in …``."""
    return {
        node.target.elts[0].id
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, (ast.For, ast.comprehension))
        and isinstance(node.target, ast.Tuple)
        and len(node.target.elts) == 2
        and isinstance(node.target.elts[0], ast.Name)
    }


def _is_parameter(groups: Groups, view: FileView, node: ast.expr, group: Group | None) -> bool:
    if isinstance(getattr(node, "ctx", None), ast.Store) and isinstance(node, ast.Name):
        return False
    values = view.values(node)
    kinds = {v.kind for v in values if isinstance(v, Derived) and _belongs(groups, v, group)}
    return "parameters" in kinds and not _iterates(view, node)


def _belongs(groups: Groups, value: Value, group: Group | None) -> bool:
    owner = owner_of(value)
    return isinstance(owner, (Wrapped, Annotated)) or (group is not None and owner in group.raw)


def _iterates(view: FileView, node: ast.expr) -> bool:
    """Whether a mention is of all parameters together: the iterable of a loop, an argument of list or dict."""
    parent = view.parents[node]
    if isinstance(parent, (ast.For, ast.comprehension)) and parent.iter is node:
        return True
    return isinstance(parent, ast.Attribute) and parent.attr in ("items", "values", "keys")


def _classify(view: FileView, node: ast.expr, found: Summoned) -> None:
    parent = view.parents[node]
    if isinstance(parent, ast.Attribute) and parent.value is node:
        if parent.attr in _SAFE_READS:
            return
        if parent.attr == "data":
            return _classify_data(view, parent, found)
        if isinstance(parent.ctx, ast.Store) or parent.attr.endswith("_"):
            found.writes.append(parent)
        elif parent.attr in ("grad", "full_tensor"):
            if parent.attr == "grad":
                found.unclear.append(parent)
        else:
            found.tensors.append(node)
        return
    if isinstance(getattr(node, "ctx", None), ast.Store):
        found.writes.append(node)
    elif isinstance(parent, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Subscript)):
        if isinstance(getattr(parent, "ctx", None), ast.Store):
            found.writes.append(node)
        else:
            found.tensors.append(node)
    elif isinstance(parent, ast.Call) and (view.external(parent.func) or "").startswith("torch."):
        if (view.external(parent.func) or "").startswith("torch.nn.init."):
            found.writes.append(node)
        else:
            found.tensors.append(node)
    else:
        found.unclear.append(node)


def _classify_data(view: FileView, node: ast.Attribute, found: Summoned) -> None:
    """``p.data``: like the parameter itself."""
    if isinstance(node.ctx, ast.Store):
        found.writes.append(node)
        return
    parent = view.parents[node]
    if isinstance(parent, ast.Attribute) and parent.attr.endswith("_"):
        found.writes.append(node)
    elif not (isinstance(parent, ast.Attribute) and parent.attr in _SAFE_READS):
        found.tensors.append(node)


def models_of(block: ast.With) -> frozenset[str]:
    """What a block summons the parameters of, as it is written (dumped)."""
    calls = [item.context_expr for item in block.items if isinstance(item.context_expr, ast.Call)]
    return frozenset(
        ast.dump(call.args[0])
        for call in calls
        if call.args and isinstance(call.func, ast.Attribute) and call.func.attr == "summon_full_params"
    )


def _classify_call(
    view: FileView, call: ast.Call, group: Group | None, models: frozenset[str], found: Summoned
) -> None:
    """A call with the model or a module of it: only what is known not to change or read parameters may stay."""
    if isinstance(call.func, ast.Attribute) and _holds_parameters(view, call.func.value, group, models):
        if call.func.attr not in _OF_SHARDS:
            found.unclear.append(call)
        return
    for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
        if _holds_parameters(view, argument, group, models):
            called = view.external(call.func) or ""
            if called not in ("builtins.len", "builtins.isinstance", "builtins.print", "builtins.id", "builtins.type"):
                found.unclear.append(call)


def _holds_parameters(
    view: FileView, node: ast.expr, group: Group | None, models: frozenset[str] = frozenset()
) -> bool:
    """Whether an expression may be the model or one of its modules."""
    values = view.values(node)
    is_module = any(is_model_of(v, group) or (isinstance(v, Derived) and v.kind == "modules") for v in values)
    return is_module or ast.dump(node) in models


def is_model_of(value: Value, group: Group | None) -> bool:
    """Whether a value may be the model of a group, or any that is wrapped."""
    return isinstance(value, (Wrapped, Annotated)) or (group is not None and value in group.raw)


def _is_model(view: FileView, node: ast.expr, group: Group | None) -> bool:
    return any(is_model_of(value, group) for value in view.values(node))
