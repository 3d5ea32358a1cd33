"""What needs a GPU: several ranks on one device over gloo, and NCCL with deterministic settings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from inject_runs import bits, select, torchrun

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_two_ranks_share_one_device(tmp_path: Path) -> None:
    sides = {}
    for wrap in ("ddp", "fsdp1", "fsdp2"):
        arguments = (wrap, str(tmp_path / f"{wrap}.pt"))
        ranks = torchrun("inject_cuda.py", *arguments, record=tmp_path / wrap, TO_FSDP2_SHARE_CUDA="2")
        (start,) = select(ranks[0], "start")
        assert (start["shared"], start["emulated"], start["backend"]) == (True, False, "nccl")
        assert select(ranks[0], "step")[-1]["memory"]["cuda_peak"] > 0
        sides[wrap] = bits(ranks)
    assert sides["ddp"] == sides["fsdp1"] == sides["fsdp2"]


def test_one_nccl_rank_with_deterministic_kernels(tmp_path: Path) -> None:
    arguments = ("fsdp2", str(tmp_path / "checkpoint.pt"))
    runs = [
        torchrun("inject_cuda.py", *arguments, record=tmp_path / str(turn), ranks=1, mode="noise") for turn in range(2)
    ]
    assert select(runs[0][0], "start")[0]["settings"]["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert bits(runs[0]) == bits(runs[1])
