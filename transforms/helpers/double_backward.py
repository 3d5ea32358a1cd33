"""Gradients of gradients: a backward through a backward."""

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .ddp_gradients import after_backward
from .parameters import resharded


def allow_double_backward(module: Any) -> None:
    """Let a backward with create_graph=True, as of a gradient penalty, be followed by one through what it recorded.

    fully_shard frees gathered parameters in the first, which the second needs, and reduces gradients before the second
    has completed them. So parameters stay gathered in between, unless they are changed, and are reduced once more.
    """
    sharded: list[Any] = [p for p in module.parameters() if isinstance(p, DTensor)]
    recorded: list[int] = []
    module._awaits_second_backward = False

    def versions() -> list[int]:
        return [p._local_tensor._version for p in sharded]

    def begin() -> None:
        recorded[:] = versions() if torch.is_grad_enabled() else []
        if recorded:
            module._awaits_second_backward = True
            module.set_reshard_after_backward(False)

    def end() -> None:
        if module._awaits_second_backward and not recorded:
            module._get_fsdp_state()._root_post_backward_final_callback()
            release()

    def release(*_: Any) -> None:
        module._awaits_second_backward = False
        module.set_reshard_after_backward(True)
        resharded(module)

    def release_if_changed(*_: Any) -> None:
        if module._awaits_second_backward and recorded != versions():
            release()

    module.register_forward_pre_hook(torch.compiler.disable(release_if_changed), prepend=True)
    after_backward(module, begin, end)
