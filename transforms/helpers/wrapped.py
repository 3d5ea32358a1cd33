"""Which wrapper class a sharded module stands for."""

from typing import Any


def record_wrapper(module: Any, kind: str) -> None:
    """Note on `module` that it is sharded in place of a wrapper: "fsdp1" or "ddp"."""
    module._wrapped_like = kind


def wrapped_like(module: Any) -> str | None:
    """The wrapper that `module` would have had: "fsdp1", "ddp", or None where nothing was recorded.

    DDP put `module.` in front of the keys of its state dict and read no_sync at the forward, FSDP1 neither.
    """
    return getattr(module, "_wrapped_like", None)


def stands_for(module: Any) -> str | None:
    """The wrapper that `module` would be in, or would be an object of a class derived from: "fsdp1", "ddp", or None."""
    return getattr(module, "_stands_for", None) or wrapped_like(module)
