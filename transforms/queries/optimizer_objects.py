"""Objects of libraries that are made around an optimizer and stand for it, such as apex's LARC."""

from __future__ import annotations

import re

from ..facts.facts import NOTHING
from ..flow.library import NAMESPACES, is_scheduler
from ..flow.values import Opaque, Optimizer
from .program import Program

_OF_NUMBERS = re.compile(r"(?i)sched|scaler|warm_?up")


def optimizers_around(program: Program, thing: Opaque) -> list[Optimizer]:
    """The optimizers that an object of a library's class was made around, unless it only sets their learning rates.

    What gets an optimizer beside other things, as a checkpointer or a trainer does, holds it and stands for none.
    """
    if thing.site < 0 or thing.name.startswith("torch.") or not thing.name.rpartition(".")[2][:1].isupper():
        return []
    if is_scheduler(thing.name) or _OF_NUMBERS.search(thing.name):
        return []
    call, flow = program.flow.calls[thing.site], program.flow
    named = dict(call.keywords)
    first = call.arguments[0] if call.arguments else named.get("optimizer", NOTHING)
    if first == NOTHING or thing.name in NAMESPACES or "model" in named:
        return []
    return [value for value in flow.values_of(first) if isinstance(value, Optimizer)]
