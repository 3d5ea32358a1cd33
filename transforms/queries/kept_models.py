"""Objects of libraries' classes that were made with a sharded model: their methods may run it, save it or ask for it."""

from __future__ import annotations

from collections.abc import Sequence

from ..facts.facts import NOTHING
from ..flow.library import is_optimizer_class
from ..flow.values import Derived, Opaque, Value
from .program import Program
from .sharding import ShardingQueries


def keeps_model(program: Program, sharding: ShardingQueries, value: Value) -> bool:
    """Whether an object of a library's class was made with a sharded model, such as what saves it now and then."""
    if not isinstance(value, Opaque) or not any(part[:1].isupper() for part in value.name.split(".")) or value.site < 0:
        return False
    if value.name.startswith("torch.nn."):
        return False  # a module around it, such as DataParallel, is for code without ranks
    if is_optimizer_class(value.name):
        return False  # it has parameters, and its state is asked about as an optimizer's
    call = program.flow.calls[value.site]
    handed = [*call.arguments, *(variable for _, variable in call.keywords)]
    return any(is_of_model(sharding, program.flow.values_of(variable), variable) for variable in handed if variable != NOTHING)


def is_of_model(sharding: ShardingQueries, values: Sequence[Value], variable: int) -> bool:
    """Whether the values of a variable are sharded models, or parameters of one."""
    owners = [v.owner for v in values if isinstance(v, Derived) and v.kind == "parameters"]
    return bool(sharding.of_values(values, sharding.made_apart(variable, values)).wrappers or sharding.of_owners(owners).wrappers)  # type: ignore[arg-type]
