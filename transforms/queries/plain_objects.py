"""Objects of classes that are no modules and hand no attribute on to one."""

from __future__ import annotations

from ..facts.facts import NOTHING
from ..flow.flow import Flow
from ..flow.library import DICTIONARIES, is_optimizer, makes_no_modules
from ..flow.values import ClassValue, External, Instance


def hands_on(flow: Flow, value: Instance) -> bool:
    """Whether an object gives attributes of others for its own; one that is a dictionary gives its items for them."""
    if not DICTIONARIES.isdisjoint(flow.external_bases(value.cls)):
        return False
    return any(flow.has_member(value.cls, name) for name in ("__getattr__", "__getattribute__"))


def is_plain_object(flow: Flow, value: Instance) -> bool:
    """Whether an object is of a class that is no module and hands no attribute on to one."""
    if hands_on(flow, value):
        return False
    for cls in flow.ancestors(value.cls):
        offset = flow.variable_offsets[cls.file]
        for base in flow.files[cls.file].classes[cls.index].bases:
            found = flow.values_of(base + offset) if base != NOTHING else []
            if not found or not all(isinstance(v, (ClassValue, External)) for v in found):
                return False
    return all(makes_no_modules(name) for name in flow.external_bases(value.cls))


def makes_modules(flow: Flow, cls: ClassValue) -> bool:
    """Whether a class of the repository makes modules."""
    bases = flow.external_bases(cls)
    return any(base.startswith("torch.nn.") for base in bases) and not any(is_optimizer(base) for base in bases)
