"""Methods called by name on what nothing shows: a model's own ones, or those of tensors, lists and other objects."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from ..flow.library import TENSOR_MATH, is_optimizer
from ..flow.tensor_methods import TENSOR_METHODS
from ..flow.values import (
    Annotated,
    Bound,
    ClassValue,
    Constant,
    Container,
    External,
    FunctionValue,
    Instance,
    Opaque,
    Unknown,
    Value,
    Wrapped,
)
from .plain_objects import is_plain_object
from .sharding import ShardingQueries

_OF_TENSORS = TENSOR_METHODS | TENSOR_MATH
_OF_OTHER_OBJECTS = frozenset(name for kind in (dict, list, set, str) for name in dir(kind)) | _OF_TENSORS
"""Methods that dictionaries, lists, texts and tensors have, and models hardly."""


def may_have_method(sharding: ShardingQueries, values: Sequence[Value], name: str) -> bool:
    """Whether a model among these values, or in a wrapper among them, may have a method; no if all classes lack it."""
    flow = sharding.program.flow
    for value in values:
        if sharding.holds_ddp(value):
            continue  # what holds a model in DDP is in none itself
        inner: Iterable[Value] = [value]
        if isinstance(value, Wrapped):
            variable = flow.fields.get((flow.ids[value], "module"))
            inner = flow.values_of(variable) if variable is not None else []
        for model in inner or [value]:
            if isinstance(model, Instance) and is_plain_object(flow, model):
                continue
            if isinstance(model, Instance):
                bases = flow.external_bases(model.cls)
                if any(map(is_optimizer, bases)):
                    continue
                if flow.has_member(model.cls, name) or not all(base.startswith("torch.nn.") for base in bases):
                    return True
            elif isinstance(model, (Wrapped, Annotated, Opaque, Unknown)) and _may_be_a_models(sharding, values, name):
                return True
    return False


def models_save_by(sharding: ShardingQueries, name: str) -> bool:
    """Whether a name is only given to methods of models in the repository, and one of them asks for the model's state."""
    flow, program = sharding.program.flow, sharding.program
    methods = flow.methods_by_name().get(name, ())
    owners = [ClassValue(m.file, flow.files[m.file].functions[m.index].owner_class) for m in methods]
    if not owners or not all(map(sharding.makes_modules, owners)):
        return False
    nodes = (n for method in methods for n in ast.walk(program.function_node(method)[1]))
    return any(isinstance(n, ast.Attribute) and n.attr == "state_dict" for n in nodes)


def _may_be_a_models(sharding: ShardingQueries, values: Sequence[Value], name: str) -> bool:
    """Whether a method may be one of a model that nothing shows; where other things come as well, it may be theirs."""
    flow = sharding.program.flow
    is_mixed = any(isinstance(v, (Constant, Container, FunctionValue, Bound, External, ClassValue)) for v in values)
    if not is_mixed and name not in _OF_TENSORS:
        return True
    methods = flow.methods_by_name().get(name, ())
    owners = [ClassValue(m.file, flow.files[m.file].functions[m.index].owner_class) for m in methods]
    if owners:
        return any(map(sharding.makes_modules, owners))
    return name not in _OF_OTHER_OBJECTS
