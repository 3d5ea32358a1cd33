"""The `module.` that DDP puts into the keys of state dicts."""

import copy
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule


def with_ddp_keys(state: dict[str, Any], model: nn.Module, prefix: str) -> dict[str, Any]:
    """`state` of `model`, renamed in place: with `module.` below the modules that the wrap recorded as DDP's."""
    return rename_keys(state, renaming(model, prefix))


def renaming(model: nn.Module, prefix: str) -> Callable[[str], str]:
    """How names below `model`, which begin with `prefix`, were called in DDP."""
    paths: list[str] = []
    for name, part in model.named_modules():
        path = f"{prefix}{name}." if name else prefix
        compiled = "_orig_mod" in part._modules and not isinstance(part, FSDPModule)  # shows attributes of its content
        if getattr(part, "_wrapped_like", None) == "ddp" and not compiled and not path.startswith(tuple(paths)):
            paths.append(path)

    def rename(key: str) -> str:
        dotted = f"{key}." if key else ""
        path = next((path for path in paths if dotted.startswith(path)), None)
        return key if path is None else f"{path}module.{dotted[len(path) :]}"[:-1]

    return rename


def without_ddp_keys(state: Any, model: nn.Module) -> Any:
    """A copy of a state dict for `model`, without the `module.` of a model that had been DDP's; of anything else itself."""
    return rename_keys(copy.copy(state), lambda key: own_key(model, key)) if isinstance(state, dict) else state


def own_key(model: Any, key: str) -> str:
    """`key` without a `module.` that no module of that name below `model` explains."""
    head, _, rest = key.partition(".")
    if head == "module" and isinstance(model, nn.Module):
        if not hasattr(model, "module") or (_reaches(model, rest) and not _reaches(model.module, rest)):
            return own_key(model, rest)
    return f"{head}.{own_key(getattr(model, head, None), rest)}" if rest else head


def _reaches(thing: Any, path: str) -> bool:
    head, _, rest = path.partition(".")
    return hasattr(thing, head) and (not rest or _reaches(getattr(thing, head), rest))


def rename_keys(state: dict[str, Any], rename: Callable[[str], str]) -> dict[str, Any]:
    """`state`, its entries and those of its `_metadata` renamed in place and in order."""
    entries = [(rename(key), value) for key, value in state.items()]
    state.clear()
    state.update(entries)
    metadata = getattr(state, "_metadata", None)
    if metadata is not None:
        state._metadata = {rename(key): value for key, value in metadata.items()}  # pyright: ignore[reportAttributeAccessIssue]
    return state
