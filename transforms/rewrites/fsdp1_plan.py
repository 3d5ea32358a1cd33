"""Whether a constructor call of FSDP1 can be written out with fully_shard, and how."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..flow.values import Instance, Opaque, Value
from ..queries.earlier_holders import is_held_earlier
from ..queries.file import File
from ..queries.late_optimizers import optimizers_follow_evaluations
from ..queries.model_classes import ASKS_FOR_CLASS_NAMES, may_have_special_modules
from ..queries.model_hazards import asked_for_class_names
from ..queries.model_structure import ModelStructure
from ..queries.program import Program
from ..queries.sharding import ShardingQueries
from ..queries.unfrozen_parameters import may_unfreeze_later
from ..queries.unread_modules import has_unread_modules
from ..sites import Site
from .fsdp1_arguments import Fsdp1Arguments, fsdp1_arguments
from .needs import Needs
from .wrap_place import WrapPlace, wrap_place

_PER_UNIT = r"\bCustomPolicy\b|\b_Policy\b|_run_policy|enable_wrap"
"""What gives units arguments of their own."""
_LOW_PRECISION = r"\.(?:half|bfloat16)\(|\bto\([^()\n]*(?:bfloat16|float16|half|dtype)|torch_dtype|set_default_dtype"
"""What parameters, and their gradients, may be of low precision by, whose norms FSDP1 took in float32."""
_LEAVE_OUT = frozenset({None, "ignored_modules", "ignored_states", "ignored_parameters", "process_group", "device_mesh"})
"""Arguments, or a dictionary of them, that may leave parameters out or give them other meshes."""


@dataclass(frozen=True)
class Fsdp1Plan:
    """The statement around a call and its arguments in FSDP2's terms."""

    place: WrapPlace
    arguments: Fsdp1Arguments
    rebinds: bool = False
    """Whether optimizers may hold the parameters already."""
    keeps_names: bool = False
    """Whether somebody asks for the names of classes."""
    acts_in_parts: bool = False
    """Whether the program adds up itself what it computes with each rank's own part."""
    reshards: bool = False
    """Whether parameters may be written or read outside of forwards, behind an evaluation: what it gathered must not stay."""
    resets: bool = False
    """Whether gradients are reset by `zero_grad` of modules, where something else than shards may be registered."""


def fsdp1_plan(
    program: Program,
    paths: Sequence[str],
    sharding: ShardingQueries,
    site: Site,
    is_before: Callable[[File, ast.AST], bool],
    needs: Needs,
    acts_in_parts: bool = False,
) -> Fsdp1Plan | None:
    """The plan for a call in a program of files ``paths``; None where the general form is needed. ``needs`` is what code asks
    of the model besides.

    It is needed where an argument is not written out, with mixed precision where the model may hold modules that FSDP1
    keeps in full precision, where parameters of a unit may be left out of its forward: FSDP1 gave them zeros for
    gradients, and where optimizers may be built after an evaluation: fully_shard leaves the model gathered then. With mixed
    precision also where parameters may learn later on: a unit takes their types from those that learn at the first forward.
    """
    assert site.call is not None
    place = wrap_place(site.file, site.call)
    arguments = fsdp1_arguments(site.file, site.call)
    if place is None or arguments is None or has_unread_modules(program):
        return None
    if optimizers_follow_evaluations(program, paths, sharding):
        return None
    models: list[Value] = [v for v in site.file.values(place.module) if isinstance(v, (Instance, Opaque))]
    if not models or len(models) != len(site.file.values(place.module)):
        return None
    if arguments.precision and may_unfreeze_later(program, paths, is_before):
        return None
    if arguments.precision and any(may_have_special_modules(program, model) for model in models):
        return None
    keeps_names = program.mentions(ASKS_FOR_CLASS_NAMES)
    if keeps_names:
        structure = ModelStructure(program, sharding, models)
        keeps_names = not structure.is_known or asked_for_class_names(structure, structure.classes)
    rebinds = keeps_originals(site.call) and is_held_earlier(sharding, paths, site.file, site.call, models)
    reshards = needs.evaluation and needs.computations.exist()
    return Fsdp1Plan(place, arguments, rebinds, keeps_names, acts_in_parts, reshards, needs.gradient_resets)


def keeps_originals(call: ast.Call) -> bool:
    """Whether optimizers from before the wrap worked, because FSDP1 kept the parameters as they were."""
    given = [k.value for k in call.keywords if k.arg in ("use_orig_params", None)]
    return any(not (isinstance(value, ast.Constant) and value.value is False) for value in given)


def shards_alike(program: Program, call: ast.Call) -> bool:
    """Whether a constructor call leaves no parameter out, has one mesh for all units, and gradients of full precision on it."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if len(call.args) > 1 or not _LEAVE_OUT.isdisjoint(given):
        return False
    offload = given.get("cpu_offload")
    if offload is not None and not (isinstance(offload, ast.Constant) and offload.value is None):
        return False
    return not (program.mentions(_PER_UNIT) or program.mentions(_LOW_PRECISION))
