"""State of optimizers over the parameters of several models: the helpers take one model that has them all."""

from __future__ import annotations

import ast

from ..analysis.values import Optimizer
from ..migration import Migration
from ..shared_optimizers import owners_of
from ..view import FileView

OF_SEVERAL = "this optimizer has parameters of several models, and the helpers for its state know those of one alone: they raise"
TOGETHER = (
    "Put the models into one module for the helpers: torch.nn.ModuleDict({…}) of all that the optimizer was built with, "
    "in get_optimizer_state_dict and set_optimizer_state_dict alike."
)


def is_over_several(migration: Migration, view: FileView, optimizer: ast.expr) -> bool:
    """Whether an optimizer is built with parameters of models that have nothing to do with each other."""
    built = [value for value in view.values(optimizer) if isinstance(value, Optimizer)]
    return any(
        len(migration.once("models of optimizer", value, lambda built=value: owners_of(migration.groups, built))) > 1
        for value in built
    )
