"""Optimizers whose steps look at more than single elements of a parameter, which is all that a shard can be asked for."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from ..flow.values import ClassValue, Opaque, Optimizer
from .answers import Sharding
from .elementwise_steps import is_elementwise
from .file import File
from .number_reads import is_tested
from .optimizer_objects import optimizers_around
from .sharding import ShardingQueries

_BY_ELEMENT = frozenset({"SGD", "Adam", "AdamW", "Adamax", "Adagrad", "Adadelta", "RMSprop", "RAdam", "NAdam", "ASGD", "Rprop",
                         "SparseAdam", "Lion", "AdaBelief", "Optimizer", "ZeroRedundancyOptimizer", "SGDScheduleFree",
                         "AdamWScheduleFree", "RAdamScheduleFree", "ScheduleFreeWrapper"})  # fmt: skip
"""Classes of optimizers that compute element by element, and are written in Python; some of them outside of steps too."""
_WITH_KERNELS = ("apex.", "bitsandbytes.", "deepspeed.")


def computes_by_element(name: str) -> bool:
    """Whether a class of this name is taken to be one of those, as the helpers take it."""
    return name in _BY_ELEMENT


def optimizers_made(file: File, sharding: ShardingQueries) -> Iterator[tuple[ast.Call, Sharding]]:
    """Calls that make an optimizer of a library, or something around one, which does more than what shards allow."""
    flow = file.program.flow
    for call in file.nodes(ast.Call):
        number = file.call_site(call)
        values = [v for v in file.values(call) if isinstance(v, Optimizer | Opaque) and v.site == number >= 0]
        parent = file.parents[call]
        is_done = isinstance(parent, ast.Call) and _name(parent.func) in ("step_on_whole", "step_on_parts")
        is_own = any(isinstance(v, ClassValue) and flow.has_member(v, "step") for v in file.called_values(call))
        if is_done or is_own or is_tested(file, call):
            continue
        for value in (v for v in values if looks_at_wholes(v.name)):
            inner = [value] if isinstance(value, Optimizer) else optimizers_around(file.program, value)
            if _is_factory(value.name):
                found = [answer for answer in [sharding.of_optimizer(file, call)] if answer.possible]
            else:
                found = [answer for answer in map(sharding.of_parameters, inner) if answer.wrappers]
            if found:
                yield call, found[0]
                break


def looks_at_wholes(name: str) -> bool:
    """Whether a class or function of a library may make an optimizer that looks at more than single elements."""
    last = name.rpartition(".")[2]
    if name.partition(".")[0] in sys.stdlib_module_names:
        return False  # `Path(folder)` in an object that holds optimizers too
    if _is_factory(name):
        return not name.startswith("torch.")  # the helper asks what came out
    return last[:1].isupper() and (last not in _BY_ELEMENT or name.startswith(_WITH_KERNELS))


def _is_factory(name: str) -> bool:
    """Whether this is a function that makes an optimizer, of a library's: ``timm.optim.create_optimizer``."""
    *owners, last = name.split(".")
    is_of_object = any(owner[:1].isupper() for owner in owners)  # a method, or what an object keeps
    return last[:1].islower() and "optimizer" in last and not is_of_object


def steps_on_wholes(file: File, sharding: ShardingQueries) -> Iterator[ast.FunctionDef]:
    """The ``step`` of each optimizer class of the file that does so."""
    flow = sharding.program.flow
    for cls in file.nodes(ast.ClassDef):
        bases = [base for v in file.values(cls) if isinstance(v, ClassValue) and (base := flow.optimizer_base(v)) is not None]
        step = next((f for f in cls.body if isinstance(f, ast.FunctionDef) and f.name == "step"), None)
        if not bases or step is None or "on_whole_parameters" in map(_name, step.decorator_list):
            continue
        if any(map(looks_at_wholes, bases)) or not is_elementwise(sharding.program, file, step):
            yield step


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
