"""Attributes of a wrapper, which the model in it did not see."""

from types import SimpleNamespace
from typing import Any

from .units import is_sharded


def on_wrapper(model: Any) -> Any:
    """What the attributes of DDP's or FSDP1's wrapper are set on: of a sharded model, which is in none, an object of their own.

    So `on_wrapper(model).loss = "l1"` does as little to what the model computes as `model.loss = "l1"` did to a wrapped one.
    What is derived from `ShardedLikeDDP` or `ShardedLikeFSDP1` still is a wrapper, and answers itself.
    """
    if not is_sharded(model) or hasattr(type(model), "_stands_for"):
        return model
    return vars(model).setdefault("_of_wrapper", SimpleNamespace())
