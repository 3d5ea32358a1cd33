"""Base classes in the place of DDP and FSDP1, for wrappers that a program derives from them."""

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import nn

from .clipping import clip_grad_norm
from .ddp import shard_like_ddp
from .ddp_keys import rename_keys
from .gradients import no_gradient_sync
from .parameters import resharded
from .shard import shard_like_fsdp1

INSIDE = "_fsdp_wrapped_module."


class ShardedLikeDDP(nn.Module):
    """`DistributedDataParallel` as a base class: takes its arguments, and is sharded together with the module inside.

    `.module`, the keys of its state dict and overridden methods are as they were; it is an FSDPModule as well.
    """

    _stands_for = "ddp"

    def __new__(cls, module: nn.Module | None = None, *_: Any, **__: Any) -> Any:
        """DDP made anew around a model, once other parameters train, is the one that it has."""
        shell = vars(module).get("_shell", lambda: None)() if module is not None else None
        return shell if isinstance(shell, cls) else super().__new__(cls)

    def __init__(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if "_modules" in vars(self):
            shard_like_ddp(self)
            return
        super().__init__()
        self.module = module
        cast(Any, module)._shell = weakref.ref(self)
        ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
        self._ddp_params_and_buffers_to_ignore = [f"module.{name}" for name in ignored]
        shard_like_ddp(self, *args, **kwargs)
        self._wrapped_like = None  # its state dict has `module.` by itself

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def no_sync(self) -> AbstractContextManager[None]:
        return no_gradient_sync(self)


class ShardedLikeFSDP1(nn.Module):
    """`FullyShardedDataParallel` as a base class: takes its arguments, and is sharded together with the module inside.

    `.module`, overridden methods, and names without a prefix are as they were; attributes that it lacks are the
    module's. It is an FSDPModule as well.
    """

    _stands_for = "fsdp1"

    def __init__(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self._fsdp_wrapped_module = module
        self._register_state_dict_hook(_without_prefix)
        self.register_load_state_dict_pre_hook(_with_prefix)
        shard_like_fsdp1(self, *args, **kwargs)
        self._wrapped_like = None  # `.module` is no other name of it

    @property
    def module(self) -> Any:
        return self._fsdp_wrapped_module

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_fsdp_wrapped_module"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._fsdp_wrapped_module(*args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name.replace(INSIDE, ""), p) for name, p in super().named_parameters(*args, **kwargs))

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name.replace(INSIDE, ""), b) for name, b in super().named_buffers(*args, **kwargs))

    def _fqn_modifiers(self) -> dict[str, str]:
        """Says to torch.distributed.checkpoint.state_dict that what the module holds has no prefix."""
        inner = self._fsdp_wrapped_module
        return dict.fromkeys([*inner._modules, *inner._parameters, *inner._buffers], INSIDE[:-1])

    def no_sync(self) -> AbstractContextManager[None]:
        return no_gradient_sync(self)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        return clip_grad_norm(resharded(self).parameters(), max_norm, norm_type)


def _without_prefix(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> dict[str, Any]:
    return rename_keys(state, lambda key: key.replace(prefix + INSIDE, prefix, 1) if key.startswith(prefix + INSIDE) else key)


def _with_prefix(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    own = {f"{prefix}{name}" for name, _ in nn.Module.named_parameters(module) if not name.startswith(INSIDE)}
    own |= {f"{prefix}{name}" for name, _ in nn.Module.named_buffers(module) if not name.startswith(INSIDE)}

    def rename(key: str) -> str:
        inside = key.startswith(prefix) and not key.startswith(prefix + INSIDE) and key not in own
        return f"{prefix}{INSIDE}{key[len(prefix) :]}" if inside else key

    rename_keys(state, rename)
