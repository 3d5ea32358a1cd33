"""What of torch.cuda and torch.accelerator is refused on the CPU: with a sentence, not with an error from within torch."""

from __future__ import annotations

import inspect
from typing import Any, NoReturn

import torch

REFUSED = (
    "cuda.CUDAGraph", "cuda.graph", "cuda.make_graphed_callables", "cuda.graph_pool_handle", "cuda.GreenContext",
    "cuda.MemPool", "cuda.use_mem_pool", "cuda.CUDAPluggableAllocator", "cuda.change_current_allocator",
    "cuda.caching_allocator_alloc", "cuda.caching_allocator_delete", "cuda.current_blas_handle",
    "cuda.current_solver_handle", "cuda.nccl.unique_id", "cuda.nccl.init_rank", "cuda.nccl.all_reduce",
    "cuda.nccl.reduce", "cuda.nccl.broadcast", "cuda.nccl.all_gather", "cuda.nccl.reduce_scatter", "accelerator.Graph",
)  # fmt: skip
"""CUDA graphs, allocators, handles of CUDA libraries, and NCCL under torch.distributed."""


def install() -> None:
    """Replace each of them by something that says so when it is used."""
    for path in REFUSED:
        *owners, name = path.split(".")
        owner: Any = torch
        for part in owners:
            owner = getattr(owner, part, None)
        if hasattr(owner, name):
            setattr(owner, name, _refusal(f"torch.{path}", getattr(owner, name)))


def _refusal(name: str, original: Any) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(f"{name} is not emulated on the CPU: run verify where there is a GPU, or with --device cpu")

    # Scripts ask isinstance of classes.
    return type(original.__name__, (), {"__init__": refuse}) if inspect.isclass(original) else refuse
