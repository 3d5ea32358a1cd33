"""Gradients of gradients: a backward through a backward."""

from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from .agreement import true_on_any_rank
from .ddp_gradients import after_backward
from .parameters import resharded


def allow_double_backward(module: Any) -> None:
    """Let a backward with create_graph=True, as of a gradient penalty, be followed by one through what it recorded.

    fully_shard frees gathered parameters in the first, which the second needs, and reduces gradients before the second
    has completed them. So parameters stay gathered in between, unless they are changed, and are reduced once more. What is
    registered as the parameters in between are the sharded ones, which optimizers know.
    """
    sharded: list[Any] = [p for p in module.parameters() if isinstance(p, DTensor)]
    recorded: list[torch.Tensor] = []  # copies: not every write, such as an optimizer's, makes a new version of a DTensor
    module._awaits_second_backward = False

    def is_changed() -> bool:
        changed = not all(map(torch.equal, recorded, (p.to_local() for p in sharded)))
        return true_on_any_rank(changed, sharded[0].device_mesh.get_group())

    def begin() -> None:
        recorded[:] = [p.to_local().detach().clone() for p in sharded] if torch.is_grad_enabled() else []
        if recorded:
            module._awaits_second_backward = True
            module.set_reshard_after_backward(False)

    def register(sharded: bool) -> None:
        groups = [unit._get_fsdp_state()._fsdp_param_group for unit in module.modules() if isinstance(unit, FSDPModule)]
        for managed in [p for group in groups if group and group.is_unsharded for p in group.fsdp_params]:
            managed._setattr_on_modules(managed.sharded_param if sharded else managed.unsharded_param)

    def end() -> None:
        if module._awaits_second_backward and recorded:
            register(sharded=True)
        elif module._awaits_second_backward:
            module._get_fsdp_state()._root_post_backward_final_callback()
            release()

    def release() -> None:
        recorded.clear()
        module._awaits_second_backward = False
        module.set_reshard_after_backward(True)
        resharded(module)

    def release_if_changed(*_: Any) -> None:
        if module._awaits_second_backward:
            release() if is_changed() else register(sharded=False)

    def hide(*_: Any) -> None:
        if module._awaits_second_backward:
            register(sharded=True)

    module.register_forward_pre_hook(torch.compiler.disable(release_if_changed), prepend=True)
    module.register_forward_hook(torch.compiler.disable(hide), always_call=True)
    after_backward(module, begin, end)
