"""What to write in the place of a subclass of FSDP1: a function that shards, and its methods on the module itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..view import FileView

_COUNTERPARTS = {
    "sharding_strategy": "reshard_after_forward, and a 2-D mesh for the hybrid ones",
    "mixed_precision": "mp_policy (it casts no buffers: do that with module.to before)",
    "cpu_offload": "offload_policy",
    "process_group": "mesh",
    "device_id": "the mesh's device, after module.to(device)",
    "ignored_modules": "ignored_params",
    "ignored_parameters": "ignored_params",
    "ignored_states": "ignored_params",
    "param_init_fn": "to_empty and that function behind fully_shard, for modules on meta",
    "sync_module_states": "a broadcast of parameters and buffers from rank 0 before",
}
"""What FSDP1's arguments become; an ``auto_wrap_policy`` decides about the units, and the others go."""
_DROPPED = frozenset({"backward_prefetch", "forward_prefetch", "use_orig_params", "limit_all_gathers"})
_NAMED = 6


def methods_of(definition: ast.ClassDef) -> list[str]:
    """The methods that a subclass adds or replaces, but for what only serves its constructor."""
    helpers = _called_by_constructor(definition)
    return [name for name in _functions_in(definition) if not name.startswith("__") and name not in helpers]


def shortened(names: list[str]) -> str:
    """Names for a sentence, the first few of many."""
    return f"{', '.join(names[:_NAMED])}{', …' if len(names) > _NAMED else ''}"


def rewriting_advice(view: FileView, definition: ast.ClassDef) -> str:
    """How a subclass of FSDP1 is written for FSDP2, with what is special about this one."""
    name = definition.name
    given = dict(_given_to_base(view, definition))
    sentences = [
        f"Make {name} a function with the same parameters that does what __init__ does, calls fully_shard on the units and, "
        "last, on the module, and returns the module: checkpoints keep their keys."
    ]
    if "auto_wrap_policy" in given:
        sentences.append(
            f"Its units are the modules that {given['auto_wrap_policy']} is true of, the innermost first "
            "(fully_shard has no policies): those of reversed(list(module.modules())) but for the module itself."
        )
    becoming = [f"{key} becomes {_COUNTERPARTS[key]}" for key in given if key in _COUNTERPARTS]
    becoming += [f"{key} goes" for key in given if key in _DROPPED]
    if "**" in given:
        becoming.append(f"what callers pass in {given['**']} has to be given by name")
    if becoming:
        sentences.append(f"Of its arguments, {'; '.join(becoming)}.")
    called, methods = _called_by_constructor(definition), methods_of(definition)
    helpers = [name for name in _functions_in(definition) if name in called]
    if helpers:
        sentences.append(f"What __init__ calls on self ({shortened(helpers)}) becomes functions.")
    if methods:
        sentences.append(_about_methods(definition, methods))
    if definition.decorator_list:
        decorators = ", ".join(f"@{view.text(node)}" for node in definition.decorator_list)
        sentences.append(f"{decorators} may stay on the function where it takes functions.")
    sentences.append("Type tests for it ask for FSDPModule. Then run the tool again.")
    return " ".join(sentences)


def _about_methods(definition: ast.ClassDef, methods: list[str]) -> str:
    """Where the methods go: a class that the module's own class is joined with before it is sharded."""
    hidden = sorted(set(methods) & _read_off_module(definition))
    shadowing = f" (self.module.{hidden[0]} is super().{hidden[0]} there)" if hidden else ""
    return (
        f"Its methods ({shortened(methods)}) move to the model's class, or to a class Steps of their own, which the "
        "function puts before the model's: module.__class__ = type(module.__class__.__name__, "
        "(Steps, module.__class__), {}), in front of fully_shard. In them self stands for self.module"
        f"{shadowing}, and self(…) runs the sharded model; a method of the model with the same name is hidden, for its own "
        "calls as well. Those that compute with parameters without calling self are registered by "
        "register_fsdp_forward_method(module, name)."
    )


def _given_to_base(view: FileView, definition: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """What the class hands to FSDP1's constructor: names and texts of the arguments that are not constants."""
    for node in ast.walk(definition):
        if isinstance(node, ast.Call) and _is_base_constructor(node):
            for keyword in node.keywords:
                if not isinstance(keyword.value, ast.Constant) or keyword.arg in _DROPPED:
                    yield keyword.arg or "**", ("**" if keyword.arg is None else "") + view.text(keyword.value)


def _is_base_constructor(call: ast.Call) -> bool:
    """``super().__init__(…)``."""
    match call.func:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="__init__"):
            return True
        case _:
            return False


def _functions_in(definition: ast.ClassDef) -> list[str]:
    return [node.name for node in definition.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def _called_by_constructor(definition: ast.ClassDef) -> set[str]:
    """The methods that ``__init__`` calls on the object itself."""
    found: set[str] = set()
    for constructor in definition.body:
        if isinstance(constructor, ast.FunctionDef) and constructor.name == "__init__":
            for node in ast.walk(constructor):
                match node:
                    case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                        found.add(name)
                    case _:
                        pass
    return found


def _read_off_module(definition: ast.ClassDef) -> set[str]:
    """The names that are read off ``self.module``."""
    found: set[str] = set()
    for node in ast.walk(definition):
        match node:
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="self"), attr="module"), attr=name):
                found.add(name)
            case _:
                pass
    return found
