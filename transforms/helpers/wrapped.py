"""Which wrapper class a sharded module stands for."""

from typing import Any


def stands_for(module: Any) -> str | None:
    """The wrapper that `module` would be in, or would be an object of a class derived from: "fsdp1", "ddp", or None.

    Sharding in place of a wrapper notes it as `_wrapped_like`. DDP put `module.` in front of the keys of its state dict and
    read no_sync at the forward, FSDP1 neither. A model that a library put into a wrapper is in that one.
    """
    classes = {cls.__name__ for cls in type(module).__mro__ if cls.__module__.startswith("torch.")}
    for name, kind in (("DistributedDataParallel", "ddp"), ("FullyShardedDataParallel", "fsdp1")):
        if name in classes:
            return kind
    return getattr(module, "_stands_for", None) or getattr(module, "_wrapped_like", None)
