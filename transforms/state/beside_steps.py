"""State that an optimizer of the repository keeps beside its steps, so that a new one is without it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.values import ClassValue
from ..migration import Migration
from ..view import FileView

Method = ast.FunctionDef | ast.AsyncFunctionDef


def kept_beside_steps(migration: Migration) -> str:
    """The first such key and where it is set, empty if none is seen: ``state["average"] = …`` in a method for clipping."""
    return migration.once("keys beside steps", None, lambda: next(_found(migration), ""))


def _found(migration: Migration) -> Iterator[str]:
    for view in migration.program.views_with(".state["):
        for cls in view.nodes(ast.ClassDef):
            if not _is_optimizer(view, cls):
                continue
            methods = {node.name: node for node in cls.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
            stepping = _reached(methods, "step") | {"__init__", "__setstate__", "load_state_dict"}
            for name, method in methods.items():
                if name not in stepping:
                    yield from (f"{ast.unparse(key)} (line {view.line(key)} of {view.path})" for key in _keys_set(method))


def _is_optimizer(view: FileView, cls: ast.ClassDef) -> bool:
    values = [value for value in view.values(cls) if isinstance(value, ClassValue)]
    return any(base.startswith("torch.optim.") for value in values for base in view.program.flow.external_bases(value))


def _reached(methods: dict[str, Method], first: str) -> set[str]:
    """A method and those that it calls on its own object, over any number of calls."""
    reached: set[str] = set()
    waiting = [first]
    while waiting:
        name = waiting.pop()
        if name in reached or name not in methods:
            continue
        reached.add(name)
        waiting.extend(node.attr for node in ast.walk(methods[name]) if isinstance(node, ast.Attribute) and _is_own(node.value))
    return reached


def _keys_set(method: Method) -> Iterator[ast.expr]:
    """Keys that are set in the state of a parameter: ``self.state[p][key]``, or through a name for that state."""
    named = {
        target.id for node in ast.walk(method) if isinstance(node, ast.Assign) and _is_state(node.value)
        for target in node.targets if isinstance(target, ast.Name)
    }  # fmt: skip
    for node in ast.walk(method):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.slice, ast.Constant):
            if _is_state(node.value) or (isinstance(node.value, ast.Name) and node.value.id in named):
                yield node.slice


def _is_state(node: ast.expr) -> bool:
    """``self.state[p]``."""
    state = node.value if isinstance(node, ast.Subscript) else None
    return isinstance(state, ast.Attribute) and state.attr == "state" and _is_own(state.value)


def _is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"
