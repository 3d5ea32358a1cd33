"""Optimizers over the parameters of several models: their models are sharded together, or none of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from .analysis.values import Derived, Instance, Opaque, Optimizer, Value, Wrapped
from .groups import Groups
from .program import owner_of
from .view import FileView

_GIVES_PARAMETERS = frozenset({"parameters", "named_parameters"})


@dataclass(frozen=True)
class Owner:
    """What a model may be, and what it may be built of: layers of one line of code may be parts of several."""

    whole: set[Value]
    parts: set[Value]

    def shares(self, other: Owner) -> bool:
        """Whether one may be the other, or a part of it."""
        return not (self.whole.isdisjoint(other.whole | other.parts) and other.whole.isdisjoint(self.parts))


def owners_of(groups: Groups, optimizer: Optimizer) -> list[Owner]:
    """The models, none of them a part of another, with whose parameters an optimizer is built."""
    program = groups.program
    owners = {
        owner_of(value)
        for value in program.elements(program.attribute(optimizer, "params"))
        if isinstance(value, Derived) and value.kind == "parameters"
    }
    found: list[Owner] = []
    for model in _models_around(groups, optimizer) if len(owners) > 1 else ():
        if not owners.isdisjoint(model.whole | model.parts) and not any(model.shares(other) for other in found):
            found.append(model)
    return found


def unite(groups: Groups) -> bool:
    """Makes one group of the models of each optimizer over several. Whether there were such groups."""
    optimizers = [value for value in groups.program.flow.values if isinstance(value, Optimizer)]
    united = [groups.merge(value for model in owners_of(groups, optimizer) for value in model.whole) for optimizer in optimizers]
    return any(united)


def _models_around(groups: Groups, optimizer: Optimizer) -> Iterator[Owner]:
    """The models whose parameters the function takes that builds an optimizer."""
    view, call = groups.program.call_node(optimizer.site)
    for node in ast.walk(view.function(call) or view.tree):
        if isinstance(node, ast.Attribute) and node.attr in _GIVES_PARAMETERS:
            yield _owner(groups, view, _outermost(groups, view, node.value))


def _outermost(groups: Groups, view: FileView, node: ast.expr) -> ast.expr:
    """``model`` of ``model.module.encoder``."""
    while isinstance(node, (ast.Attribute, ast.Subscript)) and _models(groups, view, node.value):
        node = node.value
    return node


def _owner(groups: Groups, view: FileView, node: ast.expr) -> Owner:
    models = _models(groups, view, node)
    inside = [
        value
        for model in models
        if isinstance(model, Wrapped)
        for value in groups.program.attribute(model, "module")
        if isinstance(value, (Instance, Opaque))
    ]
    whole = {*models, *inside}
    unwrapped = [value for value in whole if not isinstance(value, Wrapped)]
    return Owner(whole, groups.parts_of(unwrapped, with_strangers=True))


def _models(groups: Groups, view: FileView, node: ast.expr) -> list[Value]:
    flow = groups.program.flow
    return [
        value
        for value in view.values(node)
        if isinstance(value, Wrapped)
        or (isinstance(value, Opaque) and value.name.startswith("torch.nn."))
        or (isinstance(value, Instance) and any(name.startswith("torch.nn.") for name in flow.external_bases(value.cls)))
    ]
