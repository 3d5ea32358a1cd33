"""ZeroRedundancyOptimizer's arguments for the optimizer that it would have split over ranks."""

from typing import Any


def zero_redundancy_optimizer(
    params: Any,
    optimizer_class: Any,
    process_group: Any = None,
    parameters_as_bucket_view: bool = False,
    overlap_with_ddp: bool = False,
    **defaults: Any,
) -> Any:
    """`ZeroRedundancyOptimizer(...)` over parameters that fully_shard splits: the optimizer itself.

    Its state is split as its parameters are, and its files are those that consolidation gave. Raises NotImplementedError
    with overlap_with_ddp, which steps inside of a communication hook.
    """
    if overlap_with_ddp:
        raise NotImplementedError("overlap_with_ddp steps in DDP's communication hook: call optimizer.step() after backward")
    return optimizer_class(params, **defaults)
