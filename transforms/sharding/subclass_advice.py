"""What to write in the place of a subclass of FSDP1: a function that shards, and its methods on the module itself."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from ..members import RAW_MEMBERS, UNIQUE_MEMBERS
from ..view import FileView

_COUNTERPARTS = {
    "sharding_strategy": "reshard_after_forward (hybrid: a 2-D mesh as well)",
    "mixed_precision": "mp_policy (units with cast_forward_inputs=False; it casts no buffers)",
    "cpu_offload": "offload_policy",
    "process_group": "mesh (DeviceMesh.from_group)",
    "device_mesh": "mesh",
    "device_id": "module.to(device) before",
    "ignored_modules": "ignored_params",
    "ignored_parameters": "ignored_params",
    "ignored_states": "ignored_params",
    "param_init_fn": "to_empty and that function afterwards (modules on meta)",
    "sync_module_states": "a broadcast of parameters and buffers from rank 0 before",
}
"""What FSDP1's arguments become; an ``auto_wrap_policy`` decides about the units, and the others go."""
_DROPPED = frozenset({"backward_prefetch", "forward_prefetch", "use_orig_params", "limit_all_gathers"})
_REPLACED = UNIQUE_MEMBERS | {"get_state_dict_type", "register_comm_hook", "_auto_wrap"}
"""Members of FSDP1 that FSDP2 knows nothing of."""
_NAMED = 6


@dataclass
class Parts:
    """The methods of a subclass by what becomes of them."""

    steps: list[str] = field(default_factory=list)
    """Those that go on serving callers."""
    makers: list[str] = field(default_factory=list)
    """Class methods, which build objects of the class."""
    helpers: list[str] = field(default_factory=list)
    """Those that ``__init__`` calls."""
    state: list[str] = field(default_factory=list)
    """``state_dict`` and ``load_state_dict``."""
    replaced: list[str] = field(default_factory=list)
    """What takes the place of members of FSDP1."""


def parts_of(definition: ast.ClassDef) -> Parts:
    """The methods that a subclass adds or replaces, in the order of their definitions."""
    called = _called_by_constructor(definition)
    parts = Parts()
    for function in _functions_in(definition.body):
        name = function.name
        if name in ("__init__", "__new__"):
            continue
        if any(isinstance(decorator, ast.Name) and decorator.id == "classmethod" for decorator in function.decorator_list):
            kind = parts.makers
        elif name in RAW_MEMBERS:
            kind = parts.state
        elif name in _REPLACED:
            kind = parts.replaced
        else:
            kind = parts.helpers if name in called else parts.steps
        kind.append(name)
    return parts


def shortened(names: Collection[str]) -> str:
    """Names for a sentence, the first few of many."""
    return f"{', '.join(list(names)[:_NAMED])}{', …' if len(names) > _NAMED else ''}"


def rewriting_advice(view: FileView, definition: ast.ClassDef) -> str:
    """How a subclass of FSDP1 is written for FSDP2, with what is special about this one."""
    call = next((n for n in ast.walk(definition) if isinstance(n, ast.Call) and _is_base_constructor(n)), None)
    model, parts = _model(view, call), parts_of(definition)
    given = dict(_given_to_base(view, call)) if call is not None else {}
    does = "does what __init__ does, " if call is not None else ""
    policy = given.get("auto_wrap_policy")
    units = f"each of reversed(list({model}.modules())[1:]) that {policy} is true of" if policy else f"the units of {model}"
    sentences = [
        f"Write {definition.name} as a function that {does}calls fully_shard on {units} and last on {model} itself, and "
        f"returns {model}: checkpoints keep their keys.",
        *_about_arguments(given),
    ]
    if parts.helpers:
        sentences.append(f"{shortened(parts.helpers)}, which __init__ calls, become functions.")
    if _sets_attributes(definition):
        sentences.append(f"What __init__ keeps on self is kept on {model}.")
    if parts.makers:
        sentences.append(f"Functions that call it take the place of {shortened(parts.makers)}.")
    if parts.steps:
        sentences.append(_about_methods(definition, parts.steps, model))
    if parts.state:
        sentences.append(
            f"{' and '.join(parts.state)} of the class {'go' if len(parts.state) > 1 else 'goes'}: callers take "
            "get_model_state_dict and set_model_state_dict with StateDictOptions."
        )
    if parts.replaced:
        sentences.append(
            f"{shortened(parts.replaced)}: gone, since FSDP2 has no such members; callers take what it has instead."
        )
    if definition.decorator_list:
        decorators = ", ".join(f"@{view.text(node)}" for node in definition.decorator_list)
        sentences.append(f"{decorators} may stay if it takes functions and nothing tests for the classes it gets.")
    sentences.append("Type tests for it ask for FSDPModule. Then run the tool again.")
    return " ".join(sentences)


def _about_arguments(given: dict[str, str]) -> Iterator[str]:
    """What takes the place of the arguments that the class hands to FSDP1's constructor."""
    becoming = [f"{key} becomes {_COUNTERPARTS[key]}" for key in given if key in _COUNTERPARTS]
    going = [key for key in given if key in _DROPPED]
    if going:
        becoming.append(f"{' and '.join(going)} {'go' if len(going) > 1 else 'goes'}")
    if "**" in given:
        becoming.append(f"what {given['**']} brings likewise")
    if becoming:
        yield f"Arguments: {'; '.join(becoming)}."


def _about_methods(definition: ast.ClassDef, methods: list[str], model: str) -> str:
    """Where the methods go: a class that the module's own class is joined with before it is sharded."""
    hidden = sorted(set(methods) & _read_off_module(definition))
    shadowing = f" (self.module.{hidden[0]} is super().{hidden[0]})" if hidden else ""
    forward = ", super().forward the model's own" if "forward" in methods else ""
    return (
        f"{shortened(methods)} {'move' if len(methods) > 1 else 'moves'} to the model's class, or to a class Steps put in "
        f"front of it before fully_shard: {model}.__class__ = type({model}.__class__.__name__, (Steps, {model}.__class__), "
        f"{{}}). There self.module is self{shadowing}, and self(…) runs the sharded model{forward}; methods of these names "
        "that the model has are hidden, for its own calls as well. One that computes with parameters without self(…) needs "
        f"register_fsdp_forward_method({model}, name)."
    )


def _model(view: FileView, call: ast.Call | None) -> str:
    """What the class wraps, as it calls it."""
    if call is not None:
        for keyword in call.keywords:
            if keyword.arg == "module":
                return view.text(keyword.value)
        if call.args and isinstance(call.args[0], ast.Name):
            return call.args[0].id
    return "module"


def _given_to_base(view: FileView, call: ast.Call) -> Iterator[tuple[str, str]]:
    """Names and texts of the arguments of FSDP1's constructor that ask for something."""
    spread: list[str] = []
    for argument in call.args:
        if isinstance(argument, ast.Starred):
            spread.append(view.text(argument))
    for keyword in call.keywords:
        off = isinstance(keyword.value, ast.Constant) and not keyword.value.value
        if keyword.arg is None:
            spread.append(f"**{view.text(keyword.value)}")
        elif keyword.arg in _DROPPED or not off:
            yield keyword.arg, view.text(keyword.value)
    if spread:
        yield "**", " and ".join(spread)


def _is_base_constructor(call: ast.Call) -> bool:
    """``super().__init__(…)``."""
    match call.func:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="__init__"):
            return True
        case _:
            return False


def _functions_in(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions of a class body, also those under a condition."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield statement
        elif isinstance(statement, (ast.If, ast.Try)):
            yield from _functions_in([*statement.body, *statement.orelse])


def _constructors(definition: ast.ClassDef) -> Iterator[ast.AST]:
    """All that stands in ``__init__``."""
    for function in _functions_in(definition.body):
        if function.name == "__init__":
            yield from ast.walk(function)


def _called_by_constructor(definition: ast.ClassDef) -> set[str]:
    """The methods that ``__init__`` calls on the object itself."""
    found: set[str] = set()
    for node in _constructors(definition):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                found.add(name)
            case _:
                pass
    return found


def _sets_attributes(definition: ast.ClassDef) -> bool:
    """Whether ``__init__`` assigns to attributes of the object."""
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        for node in _constructors(definition)
    )


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
