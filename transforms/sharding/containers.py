"""Containers of modules, which DDP wraps and fully_shard refuses, as they have no forward."""

from __future__ import annotations

from collections.abc import Iterable

from ..analysis.values import Opaque, Value
from ..findings import Level
from ..rule import Outcome

_CONTAINERS = frozenset({"torch.nn.ModuleList", "torch.nn.ModuleDict"})


def refused_container(models: Iterable[Value]) -> Outcome | None:
    """The refusal of a wrap whose model may be a container."""
    name = next((model.name for model in models if isinstance(model, Opaque) and model.name in _CONTAINERS), None)
    if name is None:
        return None
    return Outcome(
        Level.MANUAL,
        f"a model may be a {name.rpartition('.')[2]}, which fully_shard refuses with a ValueError, as it has no forward",
        "Wrap its entries, each of which is called by itself, and run again; or give it a class with a forward that calls them: "
        "DDP too reduces gradients only behind its own forward.",
        holds=True,
    )
