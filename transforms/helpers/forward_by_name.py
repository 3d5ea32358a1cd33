"""`model.forward(x)`: the wrappers did there what they did in a call of the model."""

import functools
from typing import Any


def gather_in_forward(unit: Any) -> None:
    """Let `unit.forward(x)`, of a module that fully_shard has been applied to, run the hooks that `unit(x)` runs.

    They gather parameters. The method goes to the class that fully_shard gave the module, which copies do not have.
    """
    made = type(unit)
    if "forward" in vars(made):
        return
    forward = made.forward

    @functools.wraps(forward)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = self._get_fsdp_state()
        has_hooks = state._pre_forward_hook_handle.id in self._forward_pre_hooks
        is_by_name = has_hooks and state._training_state.name == "IDLE"
        return self(*args, **kwargs) if is_by_name else forward(self, *args, **kwargs)

    made.forward = run
