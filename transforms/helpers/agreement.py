"""What ranks may answer differently, made the same on all of them."""

from typing import Any

import torch
import torch.distributed as dist


def true_on_any_rank(condition: Any) -> bool:
    """Whether `condition` is true on some rank: for what all ranks then do together. Every rank calls it."""
    if not dist.is_initialized():
        return bool(condition)
    device = "cpu" if "cpu" in dist.get_backend_config() else torch.accelerator.current_accelerator()
    answer = torch.tensor(bool(condition), dtype=torch.uint8, device=device)
    dist.all_reduce(answer, dist.ReduceOp.MAX)
    return bool(answer)
