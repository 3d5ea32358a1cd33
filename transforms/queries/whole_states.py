"""Whose state dicts are whole without an edit: those of models that were DDP's, and of optimizers over them.

Where such a model is sharded, it gets hooks that gather its state dicts and distribute what is loaded, and that see to
the optimizers that step over it. Objects of other classes answer by themselves, and may hold sharded tensors.
"""

from __future__ import annotations

import ast

from ..flow.values import Constant, Instance
from .file import File
from .sharding import Sharding, ShardingQueries


def stays_whole(sharding: ShardingQueries, file: File, owner: ast.expr, found: Sharding) -> bool:
    """Whether what ``owner`` says of its state is whole: it has such hooks, or is not sharded. ``found`` is what it is."""
    wrappers = found.wrappers | sharding.of_optimizer(file, owner).wrappers
    return wrappers == {"ddp"} and not any(
        _answers_itself(sharding, value)
        for value in file.values(owner)
        if not (isinstance(value, Constant) and value.value is None)
    )


def _answers_itself(sharding: ShardingQueries, value: object) -> bool:
    """Whether a value is an object with state dicts of its own making."""
    if isinstance(value, Instance) and any(sharding.program.flow.has_member(value.cls, name) for name in _OWN):
        return True
    return sharding.is_no_module(value) and not sharding.is_optimizer(value)  # type: ignore[arg-type]


_OWN = ("state_dict", "load_state_dict")
