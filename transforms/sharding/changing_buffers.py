"""Buffers that training changes (running statistics): whether a model has any, as far as its parts are known."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..analysis import library
from ..analysis.values import ClassValue, Constant, Container, FunctionValue, Instance, Opaque, Unknown, Value, Wrapped
from ..migration import Migration
from ..program import owner_of
from ..training.passes import called_name, outside_name
from ..view import FileView
from .model_code import classes_of

_RUNNING = (
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm", "LazyBatchNorm1d", "LazyBatchNorm2d",
    "LazyBatchNorm3d", "spectral_norm",
)  # fmt: skip
_RUNNING_IF_ASKED = ("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d")
_FUNCTIONS = ("torch.nn.functional.batch_norm", "torch.batch_norm")
_LANGUAGE_MODELS = ("CausalLM", "Seq2SeqLM", "MaskedLM", "LMHeadModel", "ConditionalGeneration")
_ADD_MODULES = ("append", "extend", "insert", "add_module", "register_module", "setattr", "update")
_OF_LAYERS = ("torch.nn.TransformerEncoder", "torch.nn.TransformerDecoder", "torch.nn.DataParallel")
"""Modules of torch whose first argument is a module; their others are settings."""
_HARMLESS_BASES = ("torch.", "builtins.", "abc.", "typing.", "typing_extensions.", "enum.", "collections.")
_NO_MODULES = ("Config", "Tokenizer", "Processor", "FeatureExtractor", "Logger", "Mixin", "Module", "PreTrainedModel")
"""Endings of outside names whose objects, or whose subclasses by themselves, have no buffers."""
_STANDARD = sys.stdlib_module_names | {"numpy", "builtins", "omegaconf", "einops", "loguru", "packaging"}


@dataclass
class Buffers:
    """What is known of a model's buffers."""

    changes: bool = False
    unseen: list[str] = field(default_factory=list)
    """What of the model is not seen: names, or nothing better than "?"."""

    @property
    def are_unclear(self) -> bool:
        return bool(self.unseen) and not self.changes

    @property
    def what_is_unseen(self) -> str:
        """The parts that are not seen, by their names."""
        names = list(dict.fromkeys(name for name in self.unseen if name != "?"))
        return f" ({', '.join(names[:3])})" if names else ""


def buffers_of(migration: Migration, models: Sequence[Value]) -> Buffers:
    """Whether the models have buffers that training changes, as far as all that they are built of is seen."""
    search = _Search(migration)
    if not models:
        search.found.unseen.append("?")
    search.follow(models)
    return search.found


class _Search:
    """One walk over a model and its parts, at any depth."""

    def __init__(self, migration: Migration) -> None:
        self.migration = migration
        self.program = migration.program
        self.found = Buffers()
        self._seen: set[Value] = set()
        self._pending: list[Value] = []

    def follow(self, models: Iterable[Value]) -> None:
        self._pending.extend(models)
        while self._pending and not self.found.changes:
            value = owner_of(self._pending.pop())
            if value not in self._seen:
                self._seen.add(value)
                self._look_at(value)

    def _look_at(self, value: Value) -> None:
        if isinstance(value, Container):
            self._pending.extend(self.program.elements([value])[1:])
        elif isinstance(value, Wrapped):
            self._pending.extend(self.program.attribute(value, "module"))
        elif isinstance(value, Instance):
            self._look_at_object(value)
        elif isinstance(value, Opaque):
            self._look_at_outside(value)
        elif isinstance(value, Unknown):
            self.found.unseen.append("?")

    # --- models of the repository -------------------------------------------------------------------------

    def _look_at_object(self, model: Instance) -> None:
        classes = list(classes_of(self.migration, model.cls))
        registered = {name for _, node in classes for name in _registered_in(node)}
        if any(_runs_statistics(view, node) or _changes(node, registered) for view, node in classes) or any(
            _changes_from_outside(view, registered) for view in self.migration.views() if registered
        ):
            self.found.changes = True
            return
        used: set[str] = set()
        for view, node in classes:
            used |= _used_as_modules(node)
            self._look_at_bases(view, node)
            for call in (n for n in ast.walk(node) if isinstance(n, ast.Call) and called_name(n) in _ADD_MODULES):
                self._pending.extend(v for a in call.args for v in view.values(a) if not _is_setting(v))
        for name, values in self.program.attributes(model).items():
            self._pending.extend(v for v in values if _is_part(v) or (name in used and not _is_setting(v)))

    def _look_at_bases(self, view: FileView, node: ast.ClassDef) -> None:
        for base in node.bases:
            name = outside_name(view, base)
            known = name is None or name.startswith(_HARMLESS_BASES) or name.endswith(_NO_MODULES)
            if not known and not _is_language_model(name or ""):
                self.found.unseen.append(name or "?")

    # --- models of other code -----------------------------------------------------------------------------

    def _look_at_outside(self, value: Opaque) -> None:
        last = value.name.rpartition(".")[2]
        view, call = self.program.call_node(value.site)
        if value.name.startswith("torch.nn."):
            if last in _RUNNING or (last in _RUNNING_IF_ASKED and _asks_for_statistics(call)):
                self.found.changes = True
            elif value.name in library.MODULES_OF_MODULES:
                self._look_into(value, view, call)
            elif value.name in _OF_LAYERS or value.name.startswith("torch.nn.utils."):
                given = [*call.args[:1], *(k.value for k in call.keywords if (k.arg and "layer" in k.arg) or k.arg == "module")]
                self._look_at_given(view, given)
        elif value.name == "copy.deepcopy":
            self._look_at_given(view, call.args[:1])
        elif not _is_language_model(value.name) and not _is_no_module(value):
            self.found.unseen.append(value.name)

    def _look_into(self, value: Opaque, view: FileView, call: ast.Call) -> None:
        """A module that holds modules: what its call gives it, and what is added behind it."""
        self._look_at_given(view, [*call.args, *(keyword.value for keyword in call.keywords)])
        for values in self.program.attributes(value).values():
            self._pending.extend(values)
        self._look_at_additions(view, [value])

    def _look_at_given(self, view: FileView, given: Sequence[ast.expr]) -> None:
        for node in given:
            inside = node.value if isinstance(node, ast.Starred) else node
            values = view.values(inside)
            lists = [held for held in values if isinstance(held, Container)]
            if not values:
                self.found.unseen.append("?")
            self._look_at_additions(view, lists)
            self._pending.extend(values)
            for part in ast.walk(inside):
                if isinstance(part, (ast.List, ast.Tuple)):
                    self._check_seen(view, [e for e in part.elts if not isinstance(e, (ast.Starred, ast.Constant))])
                elif isinstance(part, (ast.ListComp, ast.GeneratorExp)):
                    self._check_seen(view, [part.elt])

    def _look_at_additions(self, view: FileView, holders: Sequence[Value]) -> None:
        """What the file adds to a list, or to a module that holds modules."""
        if not holders:
            return
        for call in view.nodes(ast.Call):
            function = call.func
            if not isinstance(function, ast.Attribute) or function.attr not in _ADD_MODULES or not call.args:
                continue
            if any(held in holders for held in view.values(function.value)):
                self._check_seen(view, [call.args[-1]])
                self._pending.extend(view.values(call.args[-1]))

    def _check_seen(self, view: FileView, nodes: Iterable[ast.expr]) -> None:
        if any(not view.values(node) for node in nodes):
            self.found.unseen.append("?")


# --- code ---------------------------------------------------------------------------------------------------


def _runs_statistics(view: FileView, node: ast.ClassDef) -> bool:
    """Whether a class names a layer of torch with running statistics."""
    for inner in ast.walk(node):
        if not isinstance(inner, (ast.Attribute, ast.Name)):
            continue
        name = inner.attr if isinstance(inner, ast.Attribute) else inner.id
        around = view.parents[inner]
        if name in _RUNNING or (name in _RUNNING_IF_ASKED and isinstance(around, ast.Call) and _asks_for_statistics(around)):
            return True
        if name == "batch_norm" and outside_name(view, inner) in _FUNCTIONS:
            return True
    return False


def _asks_for_statistics(call: ast.Call) -> bool:
    return any(
        keyword.arg == "track_running_stats" and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)
        for keyword in call.keywords
    )


def _registered_in(node: ast.ClassDef) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and called_name(inner) == "register_buffer" and inner.args:
            first = inner.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def _changes(node: ast.ClassDef, registered: set[str]) -> bool:
    """Whether a registered buffer is written in a method other than the constructor, whole or in part."""
    methods = (m for m in node.body if isinstance(m, ast.FunctionDef) and m.name != "__init__")
    return any(part.attr in registered for method in methods for part in _written(ast.walk(method)))


def _changes_from_outside(view: FileView, registered: set[str]) -> bool:
    """Whether code around the models writes one of their buffers: ``model.module.center.mul_(…)``."""
    return any(
        part.attr in registered and not (isinstance(part.value, ast.Name) and part.value.id == "self")
        for part in _written(view.nodes(ast.Attribute, ast.Subscript, ast.Call))
    )


def _written(nodes: Iterable[ast.AST]) -> Iterator[ast.Attribute]:
    """The attributes that are assigned, or changed in place, and those on the way to them."""
    for node in nodes:
        written: ast.AST | None = None
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            written = node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            written = node.func.value if name.endswith("_") and not name.startswith("_") else None
        while isinstance(written, (ast.Attribute, ast.Subscript)):
            if isinstance(written, ast.Attribute):
                yield written
            written = written.value


def _used_as_modules(node: ast.ClassDef) -> set[str]:
    """Attributes that a class calls, or goes through in a loop."""
    names: set[str] = set()
    for inner in ast.walk(node):
        used = inner.func if isinstance(inner, ast.Call) else inner.iter if isinstance(inner, ast.For) else None
        parts = ast.walk(used) if isinstance(inner, ast.For) and used is not None else [used]
        names.update(part.attr for part in parts if isinstance(part, ast.Attribute))
    return names


# --- values -------------------------------------------------------------------------------------------------


def _is_part(value: Value) -> bool:
    """Whether a value that a model holds may surely be followed: it is of the repository or of torch."""
    known = isinstance(value, Opaque) and value.name.startswith("torch.nn.")
    return known or isinstance(value, (Container, Instance, Wrapped))


def _is_setting(value: Value) -> bool:
    """Whether a value is surely no module: a constant, a function, a class, an object of the standard library."""
    if isinstance(value, (Constant, FunctionValue, ClassValue)):
        return True
    return isinstance(value, Opaque) and _is_no_module(value)


def _is_no_module(value: Opaque) -> bool:
    package = value.name.partition(".")[0]
    if package == "torch":
        return not value.name.startswith(("torch.nn.", "torch.hub.", "torch.jit.", "torch.load"))
    return package in _STANDARD or value.name.endswith(_NO_MODULES) or "Tokenizer." in value.name


def _is_language_model(name: str) -> bool:
    return name.startswith("transformers.") and any(part in name for part in _LANGUAGE_MODELS)
