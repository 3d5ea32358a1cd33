"""What is known of a model's class: the lists of blocks that it holds, and modules that need care."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..flow.values import ClassValue, FunctionValue, Instance, Opaque, Value
from .arguments import parameter_for
from .file import File
from .program import Program

ASKS_FOR_CLASS_NAMES = r"__class__\.__name__|type\([^()\n]*(?:\([^()\n]*\)[^()\n]*)*\)\.__name__"
"""Code that reads the name of an object's class, which fully_shard changes."""
_CARE = re.compile(r"BatchNorm|InstanceNorm|track_running_stats|SyncBatchNorm|spectral_norm|weight_norm|register_buffer")


def class_of(program: Program, value: Value) -> tuple[File, ast.ClassDef] | None:
    """The class of the repository that a model is of."""
    if not isinstance(value, Instance):
        return None
    file, node = program.class_node(value.cls)
    name = program.facts[value.cls.file].classes[value.cls.index].name
    node = node or next((n for n in file.nodes(ast.ClassDef) if n.name == name), None)
    return (file, node) if node is not None else None


_OF_MODULES = frozenset({"parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules", "state_dict"})


def may_get_models(file: File, node: ast.AST) -> bool:
    """Whether nothing is known of a place in a class that works on modules and that nobody is seen to make."""
    around = file.enclosing_class(node)
    if around is None or file.values(node) or _is_setting(file, node):
        return False
    classes = [value for value in file.values(around) if isinstance(value, ClassValue)]
    made = [one for cls in classes for one in file.program.flow.instances.get(cls, ()) if one.site >= 0]
    return not made and any(isinstance(n, ast.Attribute) and n.attr in _OF_MODULES for n in ast.walk(around))


def _is_setting(file: File, node: ast.AST) -> bool:
    """Whether a place reads an entry of nested dictionaries: elsewhere in the file entries of the same one have entries."""
    if not _is_entry(node):
        return False
    while isinstance(node, ast.Subscript):
        node = node.value
    root = ast.unparse(node)
    reads = file.nodes(ast.Subscript, ast.Attribute)
    inside = (n.value for n in reads if _is_entry(n) or getattr(n, "attr", "") in ("get", "items", "pop"))
    return any(_is_entry(entry) and ast.unparse(entry.value) == root for entry in inside)  # type: ignore[attr-defined]


def _is_entry(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)


_CHANGING = re.compile(r"BatchNorm|track_running_stats|InstanceNorm")
_BY_SIZES = frozenset({"zeros", "ones", "empty", "randn", "rand"})
_SIZED = frozenset({"zeros", "ones", "empty", "randn", "rand", "full", "randint", "normal"})


def changes_buffers(file: File) -> bool:
    """Whether models whose class is in a file may hold buffers that training changes."""
    return _CHANGING.search(file.source.text) is not None or writes_buffers(file, file.tree)


def writes_buffers(file: File, within: ast.AST) -> bool:
    """Whether code of a file writes a buffer that is registered in a part of it."""
    return any(True for _ in buffer_writes(file, within))


def buffer_writes(file: File, within: ast.AST) -> Iterator[ast.Attribute]:
    """The places in a file that write a buffer which is registered in a part of it."""
    calls = (n for n in ast.walk(within) if isinstance(n, ast.Call))
    names = {_text(call.args[0]) for call in calls if _is_method(call, "register_buffer") and call.args}
    return (node for node in file.nodes(ast.Attribute) if node.attr in names and _is_written(file, node))


_WRITES = re.compile(r"\bdata\s*=(?!=)|\bdata\.\w+_\(|\b(?:copy|lerp|mul|add|sub|div|clamp|clip|fill|zero|set)_\(")
_SETS_UP = re.compile(r"init|reset|load|build|convert")


def writes_in(file: File, node: ast.AST) -> bool:
    """Whether a function, or code that is handed on as one, may write into parameters other than to set something up."""
    if _WRITES.search(file.source.text) is None:
        return False
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _SETS_UP.search(node.name):
        return False
    lines = file.source.text.split("\n")[node.lineno - 1 : node.end_lineno]  # type: ignore[attr-defined]
    return _WRITES.search("\n".join(lines)) is not None


UNUSUAL_PARAMETERS = re.compile(
    r"\bsparse\b|complex|cfloat|set_default_dtype|\.(?:half|bfloat16|double|type)\(|\bto\([^()\n]*(?:dtype|half|float\d|bfloat|double)"
    r"|\bclass \w+\([^)]*\bParameter\b|torch\.(?:half|float16|bfloat16|float64|double)\b"
)
"""Parameters with sparse gradients, complex ones, and parts of models that get a type of their own."""


def has_scalars(file: File) -> bool:
    """Whether models whose class is in a file may hold parameters that fully_shard cannot take with the others."""
    if UNUSUAL_PARAMETERS.search(file.source.text):
        return True
    return any(makes_scalar(file, call) for call in file.nodes(ast.Call))


def makes_scalar(file: File, call: ast.Call) -> bool:
    """Whether a call may make a parameter without dimensions, or without elements, which fully_shard refuses."""
    return _makes_parameter(file, call) and not _has_dimensions(file, call)


def _makes_parameter(file: File, call: ast.Call) -> bool:
    name = (file.external(call.func) or ast.unparse(call.func)).rpartition(".")[2]
    return name in ("Parameter", "UninitializedParameter")


def _has_dimensions(file: File, call: ast.Call) -> bool:
    if not call.args:
        return False
    value = call.args[0]
    while isinstance(value, (ast.BinOp, ast.UnaryOp)):
        value = value.left if isinstance(value, ast.BinOp) else value.operand
    if isinstance(value, ast.Subscript):
        parts = value.slice.elts if isinstance(value.slice, ast.Tuple) else [value.slice]
        return any(isinstance(part, ast.Slice) for part in parts)
    if not isinstance(value, ast.Call):
        return False
    name = (file.external(value.func) or ast.unparse(value.func)).rpartition(".")[2]
    if name not in _SIZED or not value.args:
        return False
    first = value.args[0]
    if name in _BY_SIZES and any(isinstance(size, ast.Constant) and size.value == 0 for size in value.args):
        return False
    return not (isinstance(first, (ast.List, ast.Tuple)) and not first.elts)


def _is_written(file: File, attribute: ast.Attribute) -> bool:
    """Whether a buffer is changed here: assigned, or written in place, also as a view or under another name."""
    function = file.function(attribute)
    if isinstance(attribute.ctx, ast.Store):
        return not (isinstance(function, ast.FunctionDef) and function.name == "__init__")
    return _is_changed(file, attribute, 0)


def _is_changed(file: File, tensor: ast.expr, depth: int) -> bool:
    """Whether a tensor is written where it is read, or in a function of the repository that gets it."""
    node, parent = tensor, file.parents[tensor]
    while _is_view(parent, node):
        assert isinstance(parent, ast.expr)
        node, parent = parent, file.parents[parent]
    if isinstance(parent, (ast.Subscript, ast.Attribute)):
        in_place = isinstance(parent, ast.Attribute) and parent.attr.endswith("_") and not parent.attr.startswith("_")
        return in_place or not isinstance(parent.ctx, ast.Load)
    if isinstance(parent, ast.AugAssign):
        return parent.target is node
    function = file.function(node)
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name) and function is not None and depth < _DEEPEST:
        alike = (n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == parent.targets[0].id)
        return any(isinstance(n.ctx, ast.Load) and _is_changed(file, n, depth + 1) for n in alike)
    while isinstance(parent, (ast.List, ast.Tuple)):
        node, parent = parent, file.parents[parent]
    call = file.parents[parent] if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call) or node is call.func:
        return False
    name = file.external(call.func) or ""
    if getattr(parent, "arg", "") == "out" or name.endswith("_") or name.startswith("torch.distributed."):
        return True
    return depth < _DEEPEST and any(_writes_into(file, value, call, node, depth) for value in file.program.callees(file, call))


def _writes_into(file: File, function: FunctionValue, call: ast.Call, given: ast.expr, depth: int) -> bool:
    """Whether a function changes what a call hands it."""
    owner, node = file.program.function_node(function)
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    name = parameter_for(node, given, call, is_method=owner.enclosing_class(node) is not None)
    reads = (n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load))
    return name is not None and any(_is_changed(owner, n, depth + 1) for n in reads)


def _is_view(parent: ast.AST, node: ast.AST) -> bool:
    """Whether an expression shares the memory of the tensor it is made of: ``b.data``, ``b.view``, ``b.view(-1)``, ``b[0]``."""
    if isinstance(parent, ast.Call):
        return parent.func is node and isinstance(node, ast.Attribute) and node.attr in _VIEWS
    if isinstance(parent, ast.Subscript):
        return parent.value is node and isinstance(parent.ctx, ast.Load)
    return isinstance(parent, ast.Attribute) and isinstance(parent.ctx, ast.Load) and parent.attr in _VIEWS | {"data", "T", "mT"}


_VIEWS = frozenset({"detach", "view", "view_as", "reshape", "narrow", "select", "squeeze", "unsqueeze", "flatten", "transpose",
                    "permute", "t", "expand", "diagonal", "chunk", "split", "unbind"})  # fmt: skip
_DEEPEST = 3


def _is_method(call: ast.Call, name: str) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == name


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def may_have_special_modules(program: Program, value: Value) -> bool:
    """Whether a model may hold buffers that training changes, or modules that mixed precision treats apart.

    Known for classes of the repository whose file mentions none of them; models from outside are taken by their library:
    transformers' language models have none.
    """
    if isinstance(value, Opaque):
        return not value.name.startswith("transformers.")
    found = class_of(program, value)
    if found is None:
        return True
    return _CARE.search(found[0].source.text) is not None
