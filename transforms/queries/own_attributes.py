"""Objects with a ``.module`` of their own: of classes that store one, and averages of models that libraries keep."""

from __future__ import annotations

import ast
from fnmatch import fnmatchcase

from ..facts.symbols import AVERAGES
from ..facts.wrapper_members import OF_ALL_MODULES
from ..flow.library import NAMESPACES
from ..flow.values import ClassValue, Constant, Instance, Opaque, Unknown, Value
from .file import File
from .program import Program


def has_own_module(file: File, node: ast.expr) -> bool:
    """Whether an attribute holds a library's average of a model, which keeps its copy in a ``.module`` of its own.

    Nobody shards such an object: what it copies is made plain for it (FS505). All that the repository stores under the
    attribute's name, in whatever object, has to be known, since the analysis may not see every object.
    """
    stored = _stored(file, node.attr) if isinstance(node, ast.Attribute) else [] if isinstance(node, ast.Name) else None
    if stored is None or (isinstance(node, ast.Name) and any(isinstance(v, Unknown) for v in file.values(node))):
        return False
    known = [v for v in file.values(node) if not isinstance(v, Unknown)]
    values = [v for v in (*stored, *known) if not (isinstance(v, Constant) and v.value is None)]
    values = [v for v in values if not (isinstance(v, Opaque) and v.name in NAMESPACES)]
    return bool(values) and all(_is_average(file, value) for value in values)


def _is_average(file: File, value: Value) -> bool:
    """Whether this is an average that a library keeps, or of a class of the repository derived from such a library's."""
    names = file.program.flow.external_bases(value.cls) if isinstance(value, Instance) else [getattr(value, "name", "")]
    return any(fnmatchcase(name, pattern) for name in names for pattern in AVERAGES)


def stores_module(file: File, node: ast.expr) -> bool:
    """Whether all that comes to an expression is of classes of the repository whose own code stores a ``.module``."""
    values = [v for v in file.values(node) if not (isinstance(v, Constant) and v.value is None)]
    return bool(values) and all(_is_of_storing_class(file.program, value) for value in values)


def may_store_module(file: File, node: ast.expr) -> bool:
    """Whether something of such a class is among what comes to an expression."""
    return any(_is_of_storing_class(file.program, value) for value in file.values(node))


def _is_of_storing_class(program: Program, value: Value) -> bool:
    if not isinstance(value, Instance) or program.flow.wrapper_kind(value.cls) is not None:
        return False
    return class_stores(program, value.cls, "module")


def is_asked_for_more(file: File, node: ast.expr) -> bool:
    """Whether the file calls a method on it that no wrapper has, but a class with a ``.module`` of its own does."""
    if not isinstance(node, ast.Attribute | ast.Name):
        return False
    flow, called, text = file.program.flow, set[str](), ast.unparse(node)
    for call in file.nodes(ast.Call):  # elsewhere something else may have the name
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        if isinstance(node, ast.Name) and file.function(call) is not file.function(node):
            continue
        if receiver is not None and ast.unparse(receiver) == text:
            called.add(call.func.attr)  # type: ignore[attr-defined]
    for method in called - OF_ALL_MODULES - {"state_dict", "load_state_dict", "no_sync", "join"}:
        for function in flow.methods_by_name().get(method, ()):
            cls = ClassValue(function.file, file.program.facts[function.file].functions[function.index].owner_class)
            if flow.wrapper_kind(cls) is None and class_stores(file.program, cls, "module"):
                return True
    return False


def class_stores(program: Program, cls: ClassValue, name: str) -> bool:
    """Whether the code of a class, or of one of its bases in the repository, stores an attribute of its objects."""
    return any(name in _stored_by(node) for _, node in map(program.class_node, program.flow.ancestors(cls)))


def _stored_by(cls: ast.ClassDef | None) -> set[str]:
    stores = (n for n in ast.walk(cls) if isinstance(n, ast.Attribute)) if cls is not None else ()
    return {n.attr for n in stores if isinstance(n.ctx, ast.Store) and isinstance(n.value, ast.Name) and n.value.id == "self"}


def _stored(file: File, name: str) -> list[Value] | None:
    """What code stores in attributes of a name; None where nobody knows some of it."""
    found: list[Value] = []
    relevant = set(file.program.relevant_files())
    for index in (index for index in file.program.files_by_word.get(name, ()) if index in relevant):
        other = file.program.file(index)
        for node in other.nodes(ast.Attribute):
            if node.attr != name or isinstance(node.ctx, ast.Load):
                continue
            assign = other.parents[node]
            is_plain = isinstance(assign, ast.Assign | ast.AnnAssign)
            values = other.values(assign.value) if is_plain and assign.value is not None else []
            if not values or any(isinstance(v, Unknown) for v in values):
                return None
            found += values
    return found
