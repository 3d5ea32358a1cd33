"""Where variables, attributes and functions of a program are used; None where something may use them unseen."""

from __future__ import annotations

import libcst as cst

from .code import Code, last_name, parameters
from .project import Project

# What nn.Module has or calls by itself.
OF_MODULES = {
    "forward", "train", "eval", "state_dict", "load_state_dict", "parameters", "named_parameters", "modules", "children", "apply",
    "to", "cuda", "cpu", "half", "float", "register_buffer", "reset_parameters", "extra_repr", "zero_grad", "requires_grad_",
    "get_extra_state", "set_extra_state", "named_modules", "buffers",
}  # fmt: skip
PLAIN_BASES = {"object", "Module", "ABC", "Dataset", "DistributedSampler", "Sampler", "IterableDataset"}


def local_uses(code: Code, function: cst.FunctionDef, name: str) -> list[cst.Name] | None:
    """All names of a function, and of functions inside it, that stand for its own variable `name`; None where others may."""
    return code.own_variables(function).get(name)


def attribute_uses(project: Project, path: str, owner: cst.ClassDef, name: str) -> list[tuple[str, cst.Attribute]] | None:
    """All uses of an attribute or method of a class: on `self` in it, or on variables that only ever hold an instance."""
    if any(last_name(base.value) not in PLAIN_BASES for base in owner.bases) or name.startswith("__"):
        return None
    if owner.bases and name in OF_MODULES:
        return None
    found: list[tuple[str, cst.Attribute]] = []
    for other, code in project.codes():
        if name in code.texts:
            return None
        for node in code.find(cst.ClassDef):
            if any(last_name(base.value) == owner.name.value for base in node.bases):
                return None
        for node in code.find(cst.Attribute):
            if node.attr.value != name:
                continue
            if not (_is_self(code, owner, node.value) or _is_instance(code, owner.name.value, node.value)):
                return None
            found.append((other, node))
    return found


def _is_self(code: Code, owner: cst.ClassDef, node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Name) and node.value == "self" and owner in code.up(node)


def _is_instance(code: Code, name: str, node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.Call):
        return last_name(node.func) == name
    if not isinstance(node, cst.Name):
        return False
    function = code.function(node)
    if function and node.value not in code.local_names(function):
        function = None
    if function and node.value in parameters(function):
        return False
    stores = [store for store in code.variables(name=node.value) if code.stored(store) and code.function(store) is function]
    for store in stores:
        assign = code.parents[code.parents[store]]
        if not (isinstance(assign, cst.Assign) and isinstance(assign.value, cst.Call) and last_name(assign.value.func) == name):
            return False
    return bool(stores)


def own_calls(project: Project, path: str, function: cst.FunctionDef) -> list[tuple[str, cst.Call]] | None:
    """All calls of a function or method of the program; None where it may be called in another way, or with stars."""
    code = project.code(path)
    owner = code.class_of(function)
    if function.decorators or function.asynchronous:
        return None
    if owner is None:
        return project.calls(path, function.name.value) if code.parents[function] is code.module else None
    uses = attribute_uses(project, path, owner, function.name.value)
    same = [node for node in owner.body.body if isinstance(node, cst.FunctionDef) and node.name.value == function.name.value]
    if uses is None or len(same) > 1 or not parameters(function) or parameters(function)[0] != "self":
        return None
    found: list[tuple[str, cst.Call]] = []
    for other, use in uses:
        call = project.code(other).parents[use]
        if not isinstance(call, cst.Call) or call.func is not use or any(arg.star for arg in call.args):
            return None
        found.append((other, call))
    return found
