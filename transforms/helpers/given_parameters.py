"""Parameters that a forward is given: those of another model, for a loss that looks at its last layer."""

from typing import Any

from torch import nn
from torch.utils._pytree import tree_map_only


class _Given:
    """A parameter on its way past FSDP2's hook."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter = parameter


def pass_parameters_on(unit: Any) -> None:
    """Give them to the forward of a unit as they are, as DDP does.

    FSDP2 puts all that it is given through a function of autograd: behind that, no gradient of a parameter can be asked for.
    """
    group = unit._get_fsdp_state()._fsdp_param_group
    if group is None:
        return
    pre_forward = group.pre_forward

    def past(module: nn.Module, args: Any, kwargs: Any) -> Any:
        args, kwargs = pre_forward(module, *tree_map_only(nn.Parameter, _Given, (args, kwargs)))
        return tree_map_only(_Given, lambda given: given.parameter, (args, kwargs))

    group.pre_forward = past
