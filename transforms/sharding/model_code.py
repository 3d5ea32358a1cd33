"""What the code of a model's class tells: buffers that training changes, its blocks."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..analysis.values import ClassValue, Instance, Opaque, Value
from ..migration import Migration
from ..training.passes import called_name, outside_name
from ..view import FileView

CHANGES, NONE, UNKNOWN = "changes", "none", "unknown"

_RUNNING = (
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm", "LazyBatchNorm1d", "LazyBatchNorm2d",
    "LazyBatchNorm3d", "spectral_norm",
)  # fmt: skip
_LANGUAGE_MODELS = ("CausalLM", "Seq2SeqLM", "MaskedLM", "LMHeadModel", "ConditionalGeneration")
_CHANGING_CALLS = ("copy_", "add_", "mul_", "lerp_", "fill_", "zero_", "sub_", "div_")


def buffers_of(migration: Migration, models: Iterable[Value]) -> str:
    """Whether the models have buffers that training changes (running statistics), as far as their code is seen."""
    answers = {_buffers_of(migration, value) for value in models}
    if CHANGES in answers:
        return CHANGES
    return UNKNOWN if UNKNOWN in answers or not answers else NONE


def _buffers_of(migration: Migration, value: Value) -> str:
    if isinstance(value, Opaque):
        known = value.name.startswith("transformers.") and any(
            name in value.name for name in _LANGUAGE_MODELS
        )
        if value.name.startswith("torch.nn.") and value.name.rpartition(".")[2][:1].isupper():
            return _buffers_of_outside(migration, value)
        return NONE if known or value.name.startswith("torch.nn.") else UNKNOWN
    if not isinstance(value, Instance):
        return UNKNOWN
    answer = NONE
    for view, node in classes_of(migration, value.cls):
        if _names(view, node, _RUNNING) or _changes_own_buffer(node):
            return CHANGES
        if _builds_unknown(view, node):
            answer = UNKNOWN
    return answer


def _buffers_of_outside(migration: Migration, value: Opaque) -> str:
    """The same of a module of torch, which is known by its call, and of the modules that the call gives it."""
    view, call = migration.program.call_node(value.site)
    if _names(view, call, _RUNNING):
        return CHANGES
    inside = {given for node in ast.walk(call) if node is not call for given in view.values(node)}
    classes = (given for given in inside if isinstance(given, Instance))
    answers = {_buffers_of(migration, given) for given in classes}
    return next((answer for answer in (CHANGES, UNKNOWN) if answer in answers), NONE)


def classes_of(migration: Migration, cls: ClassValue) -> Iterator[tuple[FileView, ast.ClassDef]]:
    """A class, its bases, and the classes of the repository that it or its methods build, at any depth."""
    seen: set[ClassValue] = set()
    pending = [cls]
    flow = migration.program.flow
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        pending.extend(flow.ancestors(current))
        facts = migration.program.files[current.file].classes[current.index]
        view = migration.program.view(current.file)
        node = next(
            (n for n in view.nodes(ast.ClassDef) if n.name == facts.name and
             facts.line in (n.lineno, *(d.lineno for d in n.decorator_list))),
            None,
        )  # fmt: skip
        if node is None:
            continue
        yield view, node
        for inner in ast.walk(node):
            if isinstance(inner, (ast.Name, ast.Attribute)):
                pending.extend(v for v in view.values(inner) if isinstance(v, ClassValue))
            if isinstance(inner, ast.Call):
                values = view.values(inner)
                pending.extend(v.cls for v in values if isinstance(v, Instance))


def _names(view: FileView, node: ast.AST, names: tuple[str, ...]) -> bool:
    for inner in ast.walk(node):
        name = (
            inner.attr
            if isinstance(inner, ast.Attribute)
            else inner.id
            if isinstance(inner, ast.Name)
            else ""
        )
        if name in names:
            return True
        if name in ("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d") and isinstance(
            view.parents[inner], ast.Call
        ):
            call = view.parents[inner]
            if isinstance(call, ast.Call) and any(k.arg == "track_running_stats" for k in call.keywords):
                return True
    return False


def _changes_own_buffer(node: ast.ClassDef) -> bool:
    """Whether a registered buffer is written in a method other than the constructor."""
    names: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and called_name(inner) == "register_buffer":
            first = inner.args[0] if inner.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                names.add(first.value)
    for method in node.body:
        if not isinstance(method, ast.FunctionDef) or method.name == "__init__":
            continue
        for inner in ast.walk(method):
            if isinstance(inner, ast.Attribute) and inner.attr in names and isinstance(inner.ctx, ast.Store):
                return True
            if (
                isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute)
                and inner.func.attr in _CHANGING_CALLS and isinstance(inner.func.value, ast.Attribute)
                and inner.func.value.attr in names
            ):  # fmt: skip
                return True
    return False


def _builds_unknown(view: FileView, node: ast.ClassDef) -> bool:
    """Whether the class builds modules of packages whose code is not seen."""
    for inner in ast.walk(node):
        if not isinstance(inner, ast.Call):
            continue
        name = outside_name(view, inner.func) or ""
        if name.startswith(("torchvision.", "timm.", "monai.", "segmentation_models_pytorch.")):
            return True
    return False


def block_classes(migration: Migration, models: Iterable[Value]) -> list[str]:
    """Names of the classes that a model holds in a ``ModuleList`` (or unpacks into a ``Sequential``)."""
    found: list[str] = []
    for value in models:
        if not isinstance(value, Instance):
            continue
        for view, node in classes_of(migration, value.cls):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Call) and outside_name(view, inner.func) in (
                    "torch.nn.ModuleList", "torch.nn.Sequential"
                ):  # fmt: skip
                    found.extend(_repeated(view, inner))
    return list(dict.fromkeys(found))


def _repeated(view: FileView, call: ast.Call) -> Iterator[str]:
    for inner in ast.walk(call):
        if isinstance(inner, (ast.ListComp, ast.GeneratorExp)) and isinstance(inner.elt, ast.Call):
            built = inner.elt
            if any(isinstance(v, Instance) for v in view.values(built)):
                yield ast.unparse(built.func)
