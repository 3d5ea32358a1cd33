"""Run a script that is written for CUDA and NCCL where there are no GPUs, or fewer than it has ranks.

What it proves is what wrappers, optimizers and collectives do with the numbers, not what CUDA kernels do: custom
kernels do not run, `tensor.is_cuda` is false, memory statistics are zero, and there is one random generator instead of
two (`torch.cuda.manual_seed` is ignored, since seeding the only one would change the initial weights).
"""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import devices, not_emulated
from .settings import Settings

_MEMORY = 80 << 30
_DO_NOTHING = (
    "synchronize", "empty_cache", "ipc_collect", "init", "_lazy_init", "set_stream", "manual_seed", "manual_seed_all",
    "seed", "seed_all", "reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached",
    "reset_accumulated_memory_stats", "set_per_process_memory_fraction", "set_sync_debug_mode", "check_error",
    "caching_allocator_enable", "reset_accumulated_host_memory_stats", "reset_peak_host_memory_stats", "empty_host_cache",
)  # fmt: skip
_ZERO = (
    "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_cached",
    "max_memory_cached", "utilization", "memory_usage", "temperature", "power_draw", "clock_rate", "device_memory_used",
    "get_sync_debug_mode",
)  # fmt: skip
_ELEMENTS = (
    "Float", "Double", "Half", "BFloat16", "Int", "Long", "Short", "Char", "Byte", "Bool", "ComplexFloat", "ComplexDouble",
)  # fmt: skip
_NCCL = (2, 27, 5)
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool)


def install(settings: Settings) -> None:
    """Emulate on the CPU, or share the real devices among more ranks than there are."""
    shared = settings.share_cuda and not settings.emulate_cuda
    devices.install(devices.DeviceMap(torch.cuda.device_count() if shared else 0))
    if shared:
        _share(settings.share_cuda, torch.cuda.device_count())
    else:
        _emulate(settings.emulate_cuda)


def _share(count: int, real: int) -> None:
    set_device = torch.cuda.set_device
    torch.cuda.device_count = lambda: count
    torch.cuda.set_device = lambda device: set_device(torch.device("cuda", _index_of(device, 0) % real))


class Event:
    """Measures wall time: on the CPU everything is done when it returns."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._recorded = 0.0

    def record(self, stream: Any = None) -> None:
        self._recorded = time.perf_counter()

    def elapsed_time(self, end_event: Event) -> float:
        return (end_event._recorded - self._recorded) * 1e3

    def synchronize(self) -> None: ...

    def wait(self, stream: Any = None) -> None: ...

    def query(self) -> bool:
        return True


class Stream:
    """Runs what it is given at once."""

    device = torch.device("cpu")
    device_index = cuda_stream = priority = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record()
        return event

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None: ...


class _Properties:
    name = "emulated CUDA device (CPU)"
    major, minor = 9, 0
    total_memory = _MEMORY
    multi_processor_count = 132
    gcnArchName = ""


class _Current:
    """The index of the device that the script has set."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.index = 0

    def set(self, device: Any) -> None:
        self.index = _index_of(device, self.index)


def _emulate(count: int) -> None:
    cuda: Any = torch.cuda
    current = _Current(count)
    for namespace in (cuda, getattr(torch, "accelerator", None)):
        for names, value in ((_DO_NOTHING, None), (_ZERO, 0)):
            for name in names:
                if hasattr(namespace, name):
                    setattr(namespace, name, _always(value))
    for element in _ELEMENTS:
        for name in (f"{element}Tensor", f"{element}Storage"):
            if hasattr(torch, name):
                setattr(cuda, name, getattr(torch, name))
    _emulate_devices(cuda, current)
    _emulate_streams(cuda)
    _emulate_memory(cuda)
    _emulate_random(cuda)
    _emulate_libraries(cuda)
    _emulate_accelerator(current)
    not_emulated.install()


def _emulate_devices(cuda: Any, current: _Current) -> None:
    @contextlib.contextmanager
    def device(device: Any) -> Iterator[None]:
        before = current.index
        current.set(device)
        try:
            yield
        finally:
            current.index = before

    cuda.is_available = _always(True)
    cuda.is_initialized = _always(True)
    cuda.is_bf16_supported = _always(True)
    cuda.device_count = _always(current.count)
    cuda.current_device = lambda: current.index
    cuda.set_device = lambda device: current.set(device)
    cuda.device = device
    cuda.device_of = lambda tensor: contextlib.nullcontext()
    cuda.get_device_name = _always(_Properties.name)
    cuda.get_device_capability = _always((_Properties.major, _Properties.minor))
    cuda.get_device_properties = _always(_Properties())
    cuda.can_device_access_peer = _always(True)
    cuda.is_tf32_supported = _always(True)
    cuda.get_arch_list = _always([f"sm_{_Properties.major}{_Properties.minor}"])
    cuda.get_gencode_flags = _always("")
    cuda.list_gpu_processes = _always("")


def _emulate_streams(cuda: Any) -> None:
    stream = Stream()
    cuda.Stream, cuda.Event = Stream, Event
    cuda.current_stream = _always(stream)
    cuda.default_stream = _always(stream)
    cuda.ExternalStream = Stream
    cuda.get_stream_from_external = _always(stream)
    cuda.stream = lambda stream: contextlib.nullcontext()
    cuda.StreamContext = contextlib.nullcontext
    cuda.is_current_stream_capturing = _always(False)
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        setattr(cuda.nvtx, name, _always(None))
    cuda.nvtx.range = lambda *args, **kwargs: contextlib.nullcontext()


def _emulate_memory(cuda: Any) -> None:
    cuda.mem_get_info = _always((_MEMORY, _MEMORY))
    cuda.memory_summary = _always("")
    cuda.memory_snapshot = _always([])
    cuda.get_allocator_backend = _always("native")
    cuda.get_per_process_memory_fraction = _always(1.0)
    cuda.caching_allocator_disabled = lambda *args: contextlib.nullcontext()
    for name in ("memory_stats", "memory_stats_as_nested_dict", "host_memory_stats", "host_memory_stats_as_nested_dict"):
        setattr(cuda, name, lambda *args, **kwargs: collections.defaultdict(int))


def _emulate_random(cuda: Any) -> None:
    cuda.default_generators = (torch.default_generator,)
    cuda.initial_seed = torch.initial_seed
    cuda.get_rng_state = lambda *args: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *args: torch.set_rng_state(state)
    cuda.get_rng_state_all = lambda: [torch.get_rng_state()]
    cuda.set_rng_state_all = lambda states: torch.set_rng_state(states[0])


class _Runtime:
    """The CUDA runtime, which scripts call to start and stop profilers: every call succeeds and does nothing."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return _always(0)


def _emulate_libraries(cuda: Any) -> None:
    cuda.cudart = _always(_Runtime())
    for name in ("start", "stop"):
        setattr(cuda.profiler, name, _always(None))
    # Compression hooks and the logger of Distributed Checkpoint ask for it.
    cuda.nccl.version = _always(_NCCL)
    cuda.nccl.is_available = _always(True)


def _emulate_accelerator(current: _Current) -> None:
    torch._C._get_accelerator = _always(torch.device("cpu"))  # pyright: ignore[reportAttributeAccessIssue]
    accelerator: Any = getattr(torch, "accelerator", None)
    if accelerator is None:
        return
    accelerator.is_available = _always(True)
    accelerator.current_accelerator = _always(torch.device("cuda"))
    accelerator.device_count = _always(current.count)
    accelerator.current_stream = _always(Stream())
    accelerator.get_memory_info = _always((_MEMORY, _MEMORY))
    accelerator.memory_stats = lambda *args, **kwargs: collections.defaultdict(int)
    accelerator.device_index = torch.cuda.device
    accelerator.get_device_capability = _always({"supported_dtypes": set(_DTYPES)})
    for name in ("current_device_index", "current_device_idx"):
        setattr(accelerator, name, lambda: current.index)
    for name in ("set_device_index", "set_device_idx"):
        setattr(accelerator, name, lambda device: current.set(device))


def _always(value: Any) -> Callable[..., Any]:
    """A new function each time: torch.compile refuses one object under several names."""
    return lambda *args, **kwargs: value


def _index_of(device: Any, default: int) -> int:
    if isinstance(device, int):
        return device if device >= 0 else default
    index = torch.device(device).index
    return default if index is None else index
