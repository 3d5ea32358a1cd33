"""Optimizers that keep no tensors: loading their state in full raises, since there is nothing to tell a device by."""

from __future__ import annotations

import ast

from ..analysis.library import is_optimizer
from ..analysis.values import Optimizer, Value
from ..migration import Migration

_SGD = "torch.optim.SGD"
_MOMENTUM = 2
"""The place of ``momentum`` among SGD's arguments."""


def keeps_tensors(migration: Migration, values: list[Value]) -> str:
    """``yes``, ``no`` or ``maybe``: whether the optimizers among values keep state for their parameters."""
    answers = {_keeps(migration, value) for value in values if isinstance(value, Optimizer)}
    return answers.pop() if len(answers) == 1 else "maybe" if answers - {"yes"} else "yes"


def may_take_numbers(migration: Migration, values: list[Value]) -> bool:
    """Whether set_optimizer_state_dict may take state with numbers for names: all of torch's optimizers but SGD refuse it.

    Run on torch 2.13: the others look for a ``step`` under the parameter's name and raise a KeyError.
    """
    optimizers = [value for value in values if isinstance(value, Optimizer)]
    return not optimizers or any(_may_be_sgd(o) and _keeps(migration, o) != "no" for o in optimizers)


def _may_be_sgd(optimizer: Optimizer) -> bool:
    return optimizer.name == _SGD or not is_optimizer(optimizer.name)


def _keeps(migration: Migration, optimizer: Optimizer) -> str:
    """SGD without momentum is the one of torch's that keeps nothing."""
    if optimizer.name != _SGD:
        return "yes" if is_optimizer(optimizer.name) else "maybe"
    _, call = migration.program.call_node(optimizer.site)
    if any(keyword.arg is None for keyword in call.keywords) or any(isinstance(a, ast.Starred) for a in call.args):
        return "maybe"
    given = next((keyword.value for keyword in call.keywords if keyword.arg == "momentum"), None)
    if given is None and len(call.args) > _MOMENTUM:
        given = call.args[_MOMENTUM]
    if given is None:
        return "no"
    if isinstance(given, ast.Constant):
        return "yes" if given.value else "no"
    return "maybe"
