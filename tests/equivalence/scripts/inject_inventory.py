"""Says of every public name of torch.cuda, torch.accelerator and torch.cuda.amp what emulation makes of it, as JSON."""

import inspect
import json
import sys

import torch

OURS = "_to_fsdp2_recorder"
WORKS = {
    "torch.cuda": {
        # Classes and constants that need no device, and modules whose functions are looked at by themselves.
        "CudaError", "DeferredCudaCallError", "cudaStatus", "has_half", "has_magma", "amp", "graphs", "jiterator",
        "memory", "nccl", "nvtx", "profiler", "random", "sparse", "streams", "tunable",
    },
    "torch.accelerator": set(),
    # They are built on torch.amp, which is emulated.
    "torch.cuda.amp": {"amp_definitely_not_available", "autocast", "GradScaler", "custom_fwd", "custom_bwd"},
}  # fmt: skip


def kind(module, name):
    value = getattr(module, name)
    if name in WORKS[module.__name__]:
        return "works"
    code = getattr(value, "__code__", None) or getattr(getattr(value, "__init__", None), "__code__", None)
    if code is not None and code.co_filename.endswith("not_emulated.py"):
        return refused(value)
    replaced = OURS in str(getattr(value, "__module__", "")) or OURS in (code.co_filename if code else "")
    cpu = value in (torch.initial_seed, torch.default_generator) or name in ("StreamContext", "default_generators")
    legacy = inspect.isclass(value) and name.endswith(("Tensor", "Storage")) and value is getattr(torch, name, None)
    return "emulated" if replaced or cpu or legacy else "forgotten"


def refused(value):
    try:
        value()
    except RuntimeError as error:
        return "refused" if "is not emulated on the CPU" in str(error) and "--device cpu" in str(error) else str(error)
    return "no error"


found = {
    module.__name__: {name: kind(module, name) for name in module.__all__}
    for module in (torch.cuda, torch.accelerator, torch.cuda.amp)
}
assert torch.cuda.nccl.version() >= (2, 10) and torch.cuda.cudart().cudaProfilerStart() == 0
with torch.cuda.device_of(torch.ones(1)), torch.accelerator.device_index(1), torch.cuda.StreamContext(torch.cuda.Stream()):
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
assert torch.accelerator.current_device_index() == 0
for function in (torch.cuda.memory_snapshot, torch.cuda.memory_stats, torch.cuda.get_arch_list, torch.cuda.list_gpu_processes):
    function()
json.dump(found, sys.stdout)
