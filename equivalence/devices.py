"""Where the runs compute, and what that means for how they can be compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .options import VerifyOptions

EMULATION_NOTE = (
    "CUDA was emulated on the CPU: what wrappers, collectives and checkpoints do is proved, CUDA kernels, their "
    "speed and their memory are not"
)
SHARED_NOTE = "all ranks shared the GPUs that are here, over gloo: NCCL was not used"
NOISE_NOTE = "noise mode: differences smaller than ten times what another order of additions makes are not seen"


@dataclass(frozen=True)
class Device:
    """`environment` is what the recorder is told; `notes` are what this kind of run cannot prove."""

    name: Literal["cpu", "cuda", "emulated cuda", "shared cuda"]
    mode: Literal["exact", "noise"]
    environment: dict[str, str]
    notes: tuple[str, ...]


def choose_device(options: VerifyOptions, wants_cuda: bool) -> Device:
    """The device and mode for these options; `wants_cuda`: a script names CUDA or NCCL.

    A script that is written for CUDA but can do without (`if torch.cuda.is_available()`) takes its CUDA branch, which
    is the one that is used for training; `--device cpu` lets it take the other.
    """
    gpus = 0 if options.device == "cpu" else count_gpus()
    if options.device == "cpu" or (options.device == "auto" and not wants_cuda):
        return _device("cpu", options, {}, ())
    if gpus == 0:
        return _device("emulated cuda", options, {"TO_FSDP2_EMULATE_CUDA": str(options.nproc)}, (EMULATION_NOTE,))
    if gpus < options.nproc:
        return _device("shared cuda", options, {"TO_FSDP2_SHARE_CUDA": str(options.nproc)}, (SHARED_NOTE,))
    return _device("cuda", options, {}, ())


def _device(
    name: Literal["cpu", "cuda", "emulated cuda", "shared cuda"],
    options: VerifyOptions,
    environment: dict[str, str],
    notes: tuple[str, ...],
) -> Device:
    power_of_two = options.nproc & (options.nproc - 1) == 0
    # Sums divided before or after they are taken round alike only if the divisor is a power of two.
    mode = (
        ("exact" if "cuda" != name != "shared cuda" and power_of_two else "noise")
        if options.mode == "auto"
        else options.mode
    )
    extra = (NOISE_NOTE,) if mode == "noise" else ()
    return Device(name, mode, {**environment, "TO_FSDP2_MODE": mode}, (*notes, *extra))


def count_gpus() -> int:
    """CUDA devices that torch can use; torch is imported only where the machine has such a device."""
    if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/kfd").exists():
        return 0
    import torch

    return torch.cuda.device_count()
