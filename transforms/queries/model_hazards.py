"""What in a model asks for more than plain calls of ``fully_shard``."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator

from ..flow.flow import Flow
from ..flow.values import Constant, Instance, Opaque, Unknown, Wrapped
from .file import File
from .model_classes import UNUSUAL_PARAMETERS, buffer_writes, makes_scalar
from .model_structure import Class, ModelStructure
from .program import Program

_CHANGING_LAYERS = re.compile(r"BatchNorm|spectral_norm")
_TYPE_TESTS = re.compile(r"\bisinstance\((?:[^()]|\([^()]*\))*\)")
"""What initializers of all kinds of layers ask, which says nothing of what a model has."""
_VIEWS = frozenset(
    {"view", "reshape", "transpose", "permute", "expand", "unsqueeze", "squeeze", "flatten", "t", "T", "narrow", "select",
     "chunk", "split", "unbind", "view_as", "movedim", "mT", "swapaxes", "expand_as", "unflatten", "diagonal"}
)  # fmt: skip
_COLLECTIONS = re.compile(r"(?i)dict|tuple|list|output|mapping|sequence")
_EDITS = re.compile(r"\.(?:add|sub|mul|div|clamp|clip|sigmoid|tanh|relu|exp|masked_fill|fill|copy|scatter|index_\w+|neg|pow)_\(")


def has_scalar_parameters(structure: ModelStructure) -> bool:
    """Whether a model may hold parameters that ``fully_shard`` cannot take with the others: scalars, or of unusual types."""
    for file, cls in structure.classes:
        constructor = (f for f in cls.body if isinstance(f, ast.FunctionDef) and f.name == "__init__")
        if any(UNUSUAL_PARAMETERS.search(file.source.segment(f)) for f in constructor):
            return True
        if any(makes_scalar(file, call) for call in ast.walk(cls) if isinstance(call, ast.Call)):
            return True
    return False


def changes_buffers(structure: ModelStructure, is_before: Callable[[File, ast.AST], bool] = lambda *_: False) -> bool:
    """Whether training changes buffers of a model: those of batch norms, and its own that some code writes.

    ``is_before`` says of a place whether it surely runs before the model is wrapped.
    """
    held = [*structure.layers, *(_TYPE_TESTS.sub("", file.source.segment(cls)) for file, cls in structure.classes)]
    if any(map(_CHANGING_LAYERS.search, held)):
        return True
    if any("InstanceNorm" in one for one in held) and structure.program.mentions(r"track_running_stats"):
        return True
    return any(not is_before(file, write) for file, cls in structure.classes for write in buffer_writes(file, cls))


def backwards_keep_graphs(program: Program, paths: Iterable[str]) -> bool:
    """Whether a backward in some files may be differentiated again, or run inside of a forward."""
    for file in map(program.file, paths):
        for call in file.nodes(ast.Call) if "create_graph" in file.source.text else ():
            given = next((k.value for k in call.keywords if k.arg == "create_graph"), None)
            if given is not None and not _is_false(file, given):
                return True
    return False


def _is_false(file: File, value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return not value.value
    values = file.values(value)
    return bool(values) and all(isinstance(v, Constant) and not v.value for v in values)


def is_called_in_parts(structure: ModelStructure, paths: Iterable[str]) -> bool:
    """Whether these files may call a module in a model, or its forward by name: neither gathers the root."""
    names = structure.module_names
    own = {cls for _, cls in structure.classes}
    for file in map(structure.program.file, paths):
        for call in file.nodes(ast.Call):
            called = call.func.value if isinstance(call.func, ast.Subscript) else call.func
            is_part = isinstance(called, ast.Attribute) and (called.attr in names or called.attr == "forward")
            if is_part and isinstance(called, ast.Attribute) and file.enclosing_class(call) not in own:
                values = file.values(called.value)
                if not values or any(isinstance(v, Wrapped) or v in structure.models for v in values):
                    return True
    return False


def returns_parameters(structure: ModelStructure, units: Iterable[Class]) -> bool:
    """Whether a unit may return a parameter, or a view of one: its memory is freed when the unit is sharded again."""
    names = structure.parameter_names
    return any(_is_own(value, names) for value in _returned(units))


def returns_objects(structure: ModelStructure, units: Iterable[Class]) -> bool:
    """Whether a unit may return an object that torch does not look into for tensors, as a distribution is."""
    flow = structure.program.flow
    for file, cls in units:
        for value in _returned([(file, cls)], into_objects=False):
            for held in file.values(value):
                if isinstance(held, Instance) and not (structure.sharding.is_module(held) or _is_looked_into(flow, held)):
                    return True
                if isinstance(held, Opaque) and held.name.startswith("torch.distributions."):
                    return True
    return False


def _is_looked_into(flow: Flow, value: Instance) -> bool:
    """Whether an object is of a class derived from a collection, or of a dataclass."""
    facts = flow.files[value.cls.file].classes[value.cls.index]
    return bool(facts.fields) or any(_COLLECTIONS.search(base) for base in flow.external_bases(value.cls))


def has_edited_views(structure: ModelStructure, units: Iterable[Class]) -> bool:
    """Whether a unit may return a view, and some code edits tensors in place: that drops the unit's hooks silently."""
    if not any(map(_is_view, _returned(units))):
        return False
    program = structure.program
    return any(_EDITS.search(program.text(program.facts[index].path)) for index in program.relevant_files())


def _returned(units: Iterable[Class], into_objects: bool = True) -> Iterator[ast.expr]:
    """What the forwards of some classes return."""
    for _, cls in units:
        for forward in (f for f in cls.body if isinstance(f, ast.FunctionDef) and f.name == "forward"):
            for statement in ast.walk(forward):
                if isinstance(statement, ast.Return) and statement.value is not None:
                    yield from _results(statement.value, into_objects)


def _results(value: ast.expr, into_objects: bool) -> Iterator[ast.expr]:
    """What a return statement gives, without the tuple, dictionary or object around it."""
    if isinstance(value, ast.Tuple | ast.List):
        yield from (inner for part in value.elts for inner in _results(part, into_objects))
    elif isinstance(value, ast.Dict):
        yield from (inner for part in value.values for inner in _results(part, into_objects))
    elif into_objects and isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id[:1].isupper():
        yield from (inner for part in [*value.args, *(k.value for k in value.keywords)] for inner in _results(part, into_objects))
    else:
        yield value


def _is_own(value: ast.expr, names: frozenset[str]) -> bool:
    """Whether an expression is an attribute with a parameter's name, or a method or item of one."""
    while isinstance(value, ast.Attribute | ast.Subscript | ast.Call):
        if isinstance(value, ast.Attribute) and value.attr in names:
            return True
        if isinstance(value, ast.Call):
            if not (isinstance(value.func, ast.Attribute) and value.func.attr in _VIEWS):
                return False
            value = value.func
        value = value.value
    return False


def _is_view(value: ast.expr) -> bool:
    if isinstance(value, ast.Subscript):
        return True
    method = value.func if isinstance(value, ast.Call) else value
    return isinstance(method, ast.Attribute) and method.attr in _VIEWS


_WRITES_CLASS_NAMES = r"\b_get_name\b|\.save_pretrained\("
"""`save_pretrained` of transformers before 4.48 writes the class's name into the configuration as it is."""


def asked_for_class_names(structure: ModelStructure, units: Iterable[Class]) -> bool:
    """Whether code may ask for the name of the class of a unit, once that is sharded."""
    program = structure.program
    own = {cls for _, cls in units}
    for index in program.relevant_files():
        file = program.file(index)
        if "__name__" not in file.source.text and "__qualname__" not in file.source.text:
            continue
        for node in file.nodes(ast.Attribute):
            asked = _object_of_class(node) if node.attr in ("__name__", "__qualname__") else None
            if asked is not None and not _is_in_setup(file, node) and _may_be_unit(structure, file, asked, own):
                return True
    return program.mentions(_WRITES_CLASS_NAMES)


def _is_in_setup(file: File, node: ast.AST) -> bool:
    """Whether a place is in a function that sets weights up, or makes a module: nothing is sharded by then."""
    function = file.function(node)
    return isinstance(function, ast.FunctionDef) and "init" in function.name


def _object_of_class(node: ast.Attribute) -> ast.expr | None:
    """Of ``x.__class__.__name__`` and ``type(x).__name__`` the ``x``."""
    if isinstance(node.value, ast.Attribute) and node.value.attr == "__class__":
        return node.value.value
    if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name) and node.value.func.id == "type":
        return node.value.args[0] if node.value.args else None
    return None


def _may_be_unit(structure: ModelStructure, file: File, asked: ast.expr, own: set[ast.ClassDef]) -> bool:
    if isinstance(asked, ast.Name) and asked.id == "self":
        around = file.enclosing_class(asked)
        return around is None or around in own
    values = file.values(asked)
    if not values:
        return True
    held = set(structure.held)
    return any(isinstance(v, Wrapped | Opaque | Unknown) or (v in held and isinstance(v, Instance)) for v in values)
