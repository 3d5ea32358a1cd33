"""Whether a constructor call of FSDP1 can be written out with fully_shard, and how."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..flow.values import Instance, Opaque, Optimizer, Value
from ..queries.model_classes import ASKS_FOR_CLASS_NAMES, may_have_special_modules
from ..queries.model_hazards import asked_for_class_names
from ..queries.model_structure import ModelStructure
from ..queries.program import Program
from ..queries.sharding import ShardingQueries
from ..queries.unread_modules import has_unread_modules
from ..sites import Site
from .fsdp1_arguments import Fsdp1Arguments, fsdp1_arguments
from .wrap_place import WrapPlace, wrap_place


@dataclass(frozen=True)
class Fsdp1Plan:
    """The statement around a call and its arguments in FSDP2's terms."""

    place: WrapPlace
    arguments: Fsdp1Arguments
    rebinds: bool = False
    """Whether optimizers may hold the parameters already."""
    keeps_names: bool = False
    """Whether somebody asks for the names of classes."""


def fsdp1_plan(program: Program, sharding: ShardingQueries, site: Site) -> Fsdp1Plan | None:
    """The plan for a call; None where the general form is needed.

    It is needed where an argument is not written out, with mixed precision where the model may hold modules that FSDP1
    keeps in full precision, and where parameters of a unit may be left out of its forward: FSDP1 gave them zeros for
    gradients.
    """
    assert site.call is not None
    place = wrap_place(site.file, site.call)
    arguments = fsdp1_arguments(site.file, site.call)
    if place is None or arguments is None or has_unread_modules(program):
        return None
    models: list[Value] = [v for v in site.file.values(place.module) if isinstance(v, (Instance, Opaque))]
    if not models or len(models) != len(site.file.values(place.module)):
        return None
    if arguments.precision and any(may_have_special_modules(program, model) for model in models):
        return None
    keeps_names = program.mentions(ASKS_FOR_CLASS_NAMES)
    if keeps_names:
        structure = ModelStructure(program, sharding, models)
        keeps_names = not structure.is_known or asked_for_class_names(structure, structure.classes)
    rebinds = _keeps_originals(site.call) and has_earlier_optimizer(program, sharding, site, models)
    return Fsdp1Plan(place, arguments, rebinds, keeps_names)


def _keeps_originals(call: ast.Call) -> bool:
    """Whether optimizers from before the wrap worked, because FSDP1 kept the parameters as they were."""
    given = next((k.value for k in call.keywords if k.arg == "use_orig_params"), None)
    return given is not None and not (isinstance(given, ast.Constant) and given.value is False)


def has_earlier_optimizer(program: Program, sharding: ShardingQueries, site: Site, models: list[Value]) -> bool:
    """Whether an optimizer over these models may have been built before they are wrapped.

    Not so for optimizers that are built over what the wrapper gave back.
    """
    del site
    modules = sharding.with_parts(models)
    for value in list(program.flow.values):
        if isinstance(value, Optimizer):
            call = program.flow.calls[value.site]
            handed = call.arguments[0] if call.arguments else dict(call.keywords).get("params")
            owners = list(sharding.owners(program.flow.values_of(handed))) if handed is not None else []
            if not owners or any(owner in modules for owner in owners):
                return True
    return False
