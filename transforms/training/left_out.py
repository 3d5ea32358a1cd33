"""Layers of a model that a forward may leave out: never called, chosen by an argument, or skipped at random."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ..analysis.values import Instance
from ..view import FileView
from .passes import called_name, outside_name

_WITH_PARAMETERS = (
    "Linear", "Bilinear", "Conv", "Embedding", "Norm", "LSTM", "GRU", "RNN", "Attention", "Transformer", "Parameter",
)  # fmt: skip
_CHANCE = frozenset({"random", "rand", "uniform", "bernoulli", "randint", "uniform_"})
_ANY_CHILD = frozenset({"children", "named_children", "modules", "named_modules", "_modules", "__getattr__"})


def left_out(view: FileView, owner: ast.ClassDef, family: Sequence[ast.ClassDef]) -> Iterator[ast.expr]:
    """Where a class says that a layer takes no part in a step; ``family`` are all classes of the model."""
    yield from _never_read(view, owner, family)
    forward = next((n for n in owner.body if isinstance(n, ast.FunctionDef) and n.name == "forward"), None)
    if forward is None:
        return
    given = {a.arg for a in (*forward.args.posonlyargs, *forward.args.args[1:], *forward.args.kwonlyargs)}
    for node in ast.walk(forward):
        if isinstance(node, ast.Subscript) and _is_own(node.value) and _names(node.slice) & given and _is_called(view, node):
            yield node
        elif isinstance(node, ast.If) and _calls_own(node) and (_is_choice(node.test, given) or _is_chance(node.test)):
            yield node.test


def _never_read(view: FileView, owner: ast.ClassDef, family: Sequence[ast.ClassDef]) -> Iterator[ast.expr]:
    """Layers that the constructor makes and no code of the model reads."""
    read = {n.attr for cls in family for n in ast.walk(cls) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)}
    if read & _ANY_CHILD or any(called_name(n) == "getattr" for n in ast.walk(owner) if isinstance(n, ast.Call)):
        return
    for node in ast.walk(owner):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call) or not _has_parameters(view, node.value):
            continue
        for target in node.targets:
            if _is_own(target) and isinstance(target, ast.Attribute) and target.attr not in read:
                yield target


def _has_parameters(view: FileView, call: ast.Call) -> bool:
    name = outside_name(view, call.func) or ""
    of_torch = name.startswith("torch.nn.") and any(part in name.rpartition(".")[2] for part in _WITH_PARAMETERS)
    return of_torch or any(isinstance(value, Instance) for value in view.values(call))


def _is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _names(node: ast.expr) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _is_called(view: FileView, node: ast.AST) -> bool:
    parent = view.parents[node]
    return isinstance(parent, ast.Call) and parent.func is node


def _calls_own(branch: ast.If) -> bool:
    """Whether a branch runs a layer, or leaves the pass of a loop out that would."""
    if any(isinstance(statement, ast.Continue) for statement in branch.body):
        return True
    inside = (inner for statement in (*branch.body, *branch.orelse) for inner in ast.walk(statement))
    return any(isinstance(inner, ast.Call) and _is_own(inner.func) for inner in inside)


def _is_choice(test: ast.expr, given: set[str]) -> bool:
    """``task == "a"`` for an argument of forward."""
    if not isinstance(test, ast.Compare) or not isinstance(test.left, ast.Name) or test.left.id not in given:
        return False
    return any(isinstance(n, ast.Constant) and isinstance(n.value, str) for part in test.comparators for n in ast.walk(part))


def _is_chance(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Call) and called_name(node) in _CHANCE for node in ast.walk(test))
