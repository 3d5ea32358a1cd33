"""Parameters that are written while they are gathered: the shards keep the old values, and the next gather brings them back.

After a forward pass without a backward pass, the root's parameters stay gathered; `model.parameters()` gives them then.
"""

from __future__ import annotations

from typing import Any

import torch

from .after_import import after_import
from .patching import Function, wrap
from .places import user_place
from .tripwires import Tripwires

_PASS = "_to_fsdp2_gathered_in_pass"


def install(wires: Tripwires) -> None:
    after_import("torch.distributed.fsdp", lambda: _install(wires))


def _install(wires: Tripwires) -> None:
    try:
        from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
        from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
    except ImportError:  # before torch 2.7 fully_shard lay elsewhere
        return
    passes = _Passes(wires.root)
    wrap(FSDPState, "_root_pre_forward", passes.watch)

    def gathered(original: Function) -> Function:
        def to_unsharded(group: Any) -> None:
            if not group.is_unsharded:
                setattr(group, _PASS, passes.count)
            original(group)

        return to_unsharded

    def resharded(original: Function) -> Function:
        def to_sharded(group: Any) -> None:
            # What is gathered for a forward pass and resharded in its backward pass, nobody else gets hold of.
            idle = group._training_state.name == "IDLE"
            if not group.is_sharded and (idle or getattr(group, _PASS, passes.count) != passes.count):
                _look(wires, group, passes.last if idle else passes.before)
            original(group)

        return to_sharded

    wrap(FSDPParamGroup, "_to_unsharded", gathered)
    wrap(FSDPParamGroup, "_to_sharded", resharded)


def _look(wires: Tripwires, group: Any, place: str) -> None:
    for parameter in group.fsdp_params:
        try:
            edited = _edited(parameter)
        except (AttributeError, RuntimeError, IndexError):
            continue  # laid out in a way that this does not know
        if edited:
            info = parameter._module_info
            text = (
                f"gathered {type(info.module).__name__}.{info.param_name} for the last time before it and its shards came "
                "to differ: what was written to one of them is lost; call reshard() on every unit before writing"
            )
            wires.fire("edit", "FS703", text, place)
            return


class _Passes:
    """The places of the last two forward passes of a root."""

    def __init__(self, root: str | None) -> None:
        self._root = root
        self.before = self.last = "?"
        self.count = 0

    def watch(self, original: Function) -> Function:
        def root_pre_forward(state: Any, *args: Any) -> Any:
            context = getattr(state, "_state_ctx", None)
            outermost = context is None or context.iter_forward_root is None
            if outermost:
                self.before, self.last = self.last, user_place(self._root)
                self.count += 1
            return original(state, *args)

        return root_pre_forward


def _edited(parameter: Any) -> bool:
    """Whether this rank's part of the gathered parameter is not what its shard holds."""
    if parameter.sharded_state.name != "UNSHARDED" or not hasattr(parameter, "_unsharded_param"):
        return False
    shard = parameter._sharded_local_tensor
    whole = parameter._unsharded_param.detach()
    whole = whole._local_tensor if hasattr(whole, "_local_tensor") else whole
    if type(shard) is not torch.Tensor or shard.is_meta or whole.untyped_storage().size() == 0:
        return False
    info = parameter.mesh_info
    dimension = parameter.fsdp_placement.dim
    parts = torch.chunk(whole, info.shard_mesh_size, dim=dimension)
    if info.shard_mesh_rank >= len(parts):
        return False
    own = parts[info.shard_mesh_rank]
    expected = shard.detach().to(own.dtype).to(own.device)
    if own.shape != expected.shape:
        return False
    return bool(((own != expected) & ~(own.isnan() & expected.isnan())).any())
