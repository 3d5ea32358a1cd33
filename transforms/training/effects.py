"""What statements read and write, as far as that matters for changing their order."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..analysis.scopes import dotted_path
from ..analysis.values import External, FunctionValue, Instance, ModuleValue
from ..groups import Group
from ..migration import Migration
from ..view import FileView
from .passes import called_name

_DEEPEST = 4

_LOOKS_ONLY = frozenset(
    {
        "info", "debug", "warning", "error", "exception", "log", "print", "get", "format", "join", "items", "keys",
        "values", "split", "startswith", "endswith", "exists", "item", "size", "numel", "dim", "parameters",
        "named_parameters", "buffers", "named_buffers", "modules", "named_modules", "children", "named_children",
        "state_dict", "upper", "lower", "strip", "copy", "get_rank", "is_main_process",
    }
)  # fmt: skip
"""Methods that leave their object as it is."""

_MODEL_STAYS = frozenset(
    {
        "parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules", "children",
        "named_children", "train", "eval", "requires_grad_", "get_submodule", "zero_grad",
    }
)  # fmt: skip
"""Methods of a model that give the same before and after sharding, and leave it as it is."""

_INSPECTS = frozenset(f"builtins.{name}" for name in ("isinstance", "print", "id", "type", "len", "str"))


@dataclass
class Effects:
    """Paths that a statement reads and writes (``self.model``, ``optimizer``)."""

    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)

    def touched_by(self, other: Effects) -> set[str]:
        """Paths that cannot keep their meaning if the two change places."""
        return (
            _common(self.writes, other.reads) | _common(self.writes, other.writes) | _common(self.reads, other.writes)
        )


def _common(left: set[str], right: set[str]) -> set[str]:
    """Paths of one set that are, hold or belong to a path of the other."""
    return {
        max(a, b, key=len) for a in left for b in right if a == b or a.startswith(b + ".") or b.startswith(a + ".")
    }


def effects_of(migration: Migration, view: FileView, node: ast.AST) -> Effects:
    """The effects of a statement, those of methods of ``self`` that it calls included."""
    effects = Effects()
    _collect(migration, view, node, effects, {}, 0)
    return effects


def _collect(
    migration: Migration, view: FileView, node: ast.AST, effects: Effects, names: dict[str, str], depth: int
) -> None:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        effects.writes.add(node.name)
        return
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        effects.writes.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        return
    if isinstance(node, (ast.Name, ast.Attribute)):
        path = dotted_path(node)
        if path is not None:
            path = _renamed(path, names)
            if path is not None:
                (effects.reads if isinstance(node.ctx, ast.Load) else effects.writes).add(path)
            return
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        path = dotted_path(node.value)
        renamed = _renamed(path, names) if path else None
        if renamed:
            effects.writes.add(renamed)
    if isinstance(node, ast.Call):
        _collect_call(migration, view, node, effects, names, depth)
    for child in ast.iter_child_nodes(node):
        _collect(migration, view, child, effects, names, depth)


def _renamed(path: str, names: dict[str, str]) -> str | None:
    """A path as the caller calls it; None for what is local to a called method."""
    if not names:
        return path
    root, dot, rest = path.partition(".")
    return f"{names[root]}{dot}{rest}" if root in names else None


def _collect_call(
    migration: Migration, view: FileView, call: ast.Call, effects: Effects, names: dict[str, str], depth: int
) -> None:
    if not isinstance(call.func, ast.Attribute):
        return
    receiver = dotted_path(call.func.value)
    if receiver is None or any(isinstance(v, (External, ModuleValue)) for v in view.values(call.func.value)):
        return
    renamed = _renamed(receiver, names)
    callees = migration.program.callees(view, call)
    if callees and renamed is not None and depth < _DEEPEST:
        for callee in callees:
            _collect_method(migration, callee, renamed, effects, depth)
    elif call.func.attr not in _LOOKS_ONLY | _MODEL_STAYS and renamed is not None:
        effects.writes.add(renamed)


def _collect_method(migration: Migration, callee: FunctionValue, receiver: str, effects: Effects, depth: int) -> None:
    view, node = migration.program.function_node(callee)
    arguments = getattr(getattr(node, "args", None), "args", [])
    if not arguments:
        return
    inner = Effects()
    for child in getattr(node, "body", []) if isinstance(node, ast.FunctionDef) else []:
        _collect(migration, view, child, inner, {arguments[0].arg: receiver}, depth + 1)
    effects.reads |= {path for path in inner.reads if path != receiver}
    effects.writes |= {path for path in inner.writes if path != receiver}


# --- the model ----------------------------------------------------------------------------------------------


def leaves_model_alone(
    migration: Migration, view: FileView, nodes: Iterable[ast.AST], group: Group, depth: int = 0
) -> bool:
    """Whether statements do the same to a model's group before and after sharding: they only look at parameters."""
    for node in nodes:
        for inner in ast.walk(node):
            if not isinstance(inner, (ast.Name, ast.Attribute)) or not isinstance(inner.ctx, ast.Load):
                continue
            if _is_model(view, inner, group) and not _is_harmless(migration, view, inner, group, depth):
                return False
    return True


def _is_model(view: FileView, node: ast.expr, group: Group) -> bool:
    wrapped = {wrap.value for wrap in group.wraps}
    return any(value in group.raw or value in wrapped for value in view.values(node))


def _is_harmless(migration: Migration, view: FileView, node: ast.expr, group: Group, depth: int) -> bool:
    parent = view.parents[node]
    if isinstance(parent, ast.Attribute):
        outer = view.parents[parent]
        called = isinstance(outer, ast.Call) and outer.func is parent
        if not called or parent.attr in _MODEL_STAYS:
            return isinstance(parent.ctx, ast.Load)
        return _body_is_harmless(migration, view, outer, group, depth)  # pyright: ignore[reportArgumentType]
    if isinstance(parent, ast.keyword):
        parent = view.parents[parent]
    if isinstance(parent, ast.Call):
        if parent.func is node:
            return False
        name = view.external(parent.func) or ""
        last = name.rpartition(".")[2].lower()
        if name in _INSPECTS or name.startswith("logging.") or ("optim" in last and "state" not in last):
            return True  # builders of optimizers read the parameters
        return _body_is_harmless(migration, view, parent, group, depth)
    if isinstance(parent, (ast.Assign, ast.IfExp, ast.Return, ast.FormattedValue)):
        return True  # another name for it
    return isinstance(parent, ast.Compare)


def _body_is_harmless(migration: Migration, view: FileView, call: ast.Call, group: Group, depth: int) -> bool:
    """Whether the functions of the repository that a call reaches leave the model alone as well."""
    callees = migration.program.callees(view, call)
    if not callees or depth >= _DEEPEST:
        return False
    if called_name(call) in ("load_state_dict", "to", "cuda"):
        return False
    for callee in callees:
        inner, function = migration.program.function_node(callee)
        body = getattr(function, "body", [])
        if not isinstance(body, list) or not leaves_model_alone(migration, inner, body, group, depth + 1):
            return False
        if _builds_object_around(view, call):
            return False
    return True


def _builds_object_around(view: FileView, call: ast.Call) -> bool:
    """Whether the call makes an object that keeps the model (an average of weights, an engine)."""
    return any(isinstance(value, Instance) and value.site == view.call_site(call) for value in view.values(call))
