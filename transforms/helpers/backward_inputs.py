"""`loss.backward(inputs=parameters)`: gradients of these alone."""

from collections.abc import Iterable

import torch

from .replaced_data import manager_of


def in_graph(inputs: torch.Tensor | Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """`inputs` of a backward, with what forwards gathered of the sharded ones: that is in its graph, they themselves are not."""
    asked = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
    gathered = [getattr(manager_of(tensor)[1], "_unsharded_param", None) for tensor in asked]
    return [*asked, *(tensor for tensor in gathered if tensor is not None)]
