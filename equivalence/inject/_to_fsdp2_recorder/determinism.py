"""Settings that make two runs on a GPU comparable; the CPU kernels need none."""

from __future__ import annotations

import os

import torch

from .settings import Settings


def apply(settings: Settings) -> dict[str, str]:
    """Apply them where CUDA is used; returns what was applied, for the report."""
    if settings.emulate_cuda or not torch.cuda.is_available():
        return {}
    # cuBLAS reads the variable when it is initialised, which is after the import of torch.
    workspace = os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    return {
        "CUBLAS_WORKSPACE_CONFIG": workspace,
        "torch.use_deterministic_algorithms": "warn_only",
        "torch.backends.cudnn.benchmark": "False",
    }
