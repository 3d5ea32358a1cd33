"""Redirect what a script does with `cuda:i` to the devices that this machine has."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.jit._builtins import _find_builtin, _register_builtin
from torch.utils._device import DeviceContext, _device_constructors

from .after_import import after_import
from .patching import Function, changed_arguments, wrap

_LIKE = ("empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like")
_NEW = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")


class DeviceMap:
    """Maps the devices that a script names to those that are here: all to the CPU, or indices to those of real GPUs."""

    def __init__(self, real_devices: int) -> None:
        self.real_devices = real_devices

    @property
    def to_cpu(self) -> bool:
        return self.real_devices == 0

    def __call__(self, device: Any) -> Any:
        """The device to use instead; what is not a CUDA device comes back as it is."""
        if isinstance(device, int) and not isinstance(device, bool):
            return self._index(device)
        if isinstance(device, str) and device.split(":")[0] == "cuda":
            device = torch.device(device)
        if isinstance(device, torch.device) and device.type == "cuda":
            if self.to_cpu:
                return torch.device("cpu")
            return device if device.index is None else self._index(device.index)
        return device

    def _index(self, index: int) -> torch.device:
        return torch.device("cpu") if self.to_cpu else torch.device("cuda", index % self.real_devices)

    def in_keywords(self, kwargs: dict[str, Any]) -> None:
        if kwargs.get("device") is not None:
            kwargs["device"] = self(kwargs["device"])
        if self.to_cpu and kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False


def install(devices: DeviceMap) -> None:
    """Redirect tensors, modules, loading, automatic mixed precision and torch.distributed."""
    _install_constructors(devices)
    _install_tensors_and_modules(devices)
    _install_loading(devices)
    _install_distributed(devices)
    if devices.to_cpu:
        _install_mixed_precision()
        wrap(torch.utils.data.DataLoader, "__init__", changed_arguments(lambda kwargs: kwargs.pop("pin_memory", None)))


def _install_constructors(devices: DeviceMap) -> None:
    # The set is cached: `with torch.device(…)` goes on recognising the originals, which the replacements call.
    for constructor in _device_constructors():
        name = constructor.__name__.removeprefix("fft_")
        for owner in (torch, torch.fft, torch.nested):
            if getattr(owner, name, None) is constructor:
                _redirect(devices, owner, name)
    for name in _LIKE:
        _redirect(devices, torch, name)
    for name in _NEW:
        wrap(torch.Tensor, name, changed_arguments(devices.in_keywords))
    wrap(DeviceContext, "__init__", lambda original: lambda self, device: original(self, devices(device)))

    class GeneratorType(type(torch._C.Generator)):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, torch._C.Generator)

    class Generator(torch._C.Generator, metaclass=GeneratorType):
        def __new__(cls, device: Any = "cpu") -> Any:
            return torch._C.Generator(device=devices(device))

    torch.Generator = Generator  # pyright: ignore[reportAttributeAccessIssue]


def _redirect(devices: DeviceMap, owner: Any, name: str) -> None:
    operator = _find_builtin(getattr(owner, name))
    wrap(owner, name, changed_arguments(devices.in_keywords))
    # TorchScript knows builtin functions by their identity.
    if operator is not None:
        _register_builtin(getattr(owner, name), operator)


def _install_tensors_and_modules(devices: DeviceMap) -> None:
    def first_argument(original: Function) -> Function:
        def to(self: Any, *args: Any, **kwargs: Any) -> Any:
            devices.in_keywords(kwargs)
            if args:
                args = (devices(args[0]), *args[1:])
            return original(self, *args, **kwargs)

        return to

    wrap(torch.Tensor, "to", first_argument)
    wrap(torch.nn.Module, "to", first_argument)
    wrap(torch.nn.Module, "to_empty", changed_arguments(devices.in_keywords))
    if not devices.to_cpu:
        wrap(torch.Tensor, "cuda", first_argument)
        wrap(torch.nn.Module, "cuda", first_argument)
        return
    for owner in (torch.Tensor, torch.nn.Module):
        wrap(owner, "cuda", lambda original: lambda self, *args, **kwargs: self)
    wrap(torch.Tensor, "pin_memory", lambda original: lambda self, *args, **kwargs: self)
    wrap(torch.Tensor, "record_stream", lambda original: lambda self, *args: None)
    # From a GPU this makes a copy, and scripts rely on it (a snapshot of weights must not go on training).
    wrap(torch.Tensor, "cpu", lambda original: lambda self, *args, **kwargs: original(self, *args, **kwargs).clone())


def _install_loading(devices: DeviceMap) -> None:
    def load(original: Function) -> Function:
        def call(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            # A file may hold CUDA tensors; a function or a dict as map_location only chooses between CUDA devices.
            if devices.to_cpu:
                map_location = map_location if isinstance(map_location, str) and map_location == "meta" else "cpu"
            else:
                map_location = devices(map_location)
            return original(file, map_location, *args, **kwargs)

        return call

    wrap(torch, "load", load)

    def safetensors() -> None:
        # While its import is under way the package does not have the attribute yet; the `as` form finds it all the same.
        import safetensors.torch as library  # pyright: ignore[reportMissingImports]

        def around(original: Function) -> Function:
            def load_file(filename: Any, device: Any = "cpu") -> Any:
                return original(filename, device=str(devices(device)))

            return load_file

        wrap(library, "load_file", around)

    after_import("safetensors.torch", safetensors)


def _install_mixed_precision() -> None:
    def autocast(original: Function) -> Function:
        def init(self: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any) -> None:
            if device_type.split(":")[0] == "cuda":
                device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
            original(self, device_type, dtype, *args, **kwargs)

        return init

    def scaler(original: Function) -> Function:
        def init(self: Any, device: Any = "cuda", *args: Any, **kwargs: Any) -> None:
            original(self, "cpu" if str(device).split(":")[0] == "cuda" else device, *args, **kwargs)

        return init

    def custom(kwargs: dict[str, Any]) -> None:
        if str(kwargs.get("device_type")).split(":")[0] == "cuda":
            kwargs["device_type"] = "cpu"

    for name in ("custom_fwd", "custom_bwd"):
        wrap(torch.amp.autocast_mode, name, changed_arguments(custom))
    wrap(torch.amp.autocast_mode.autocast, "__init__", autocast)
    wrap(torch.amp.grad_scaler.GradScaler, "__init__", scaler)


def _install_distributed(devices: DeviceMap) -> None:
    if not dist.is_available():
        return
    from torch.distributed import device_mesh

    def ddp(original: Function) -> Function:
        def init(self: Any, module: Any, device_ids: Any = None, output: Any = None, *args: Any, **kwargs: Any) -> None:
            output = kwargs.pop("output_device", output)
            if devices.to_cpu:
                device_ids = output = None
            elif device_ids is not None:
                device_ids = [devices(device) for device in device_ids]
            original(self, module, device_ids, devices(output), *args, **kwargs)

        return init

    def comm_hook(original: Function) -> Function:
        def check(self: Any, hook: Any) -> None:
            # bf16_compress_hook is refused where torch was built without CUDA.
            built_with, torch.version.cuda = torch.version.cuda, torch.version.cuda or "12.8"
            try:
                original(self, hook)
            finally:
                torch.version.cuda = built_with

        return check

    wrap(torch.nn.parallel.DistributedDataParallel, "__init__", ddp)
    if devices.to_cpu:
        wrap(torch.nn.parallel.DistributedDataParallel, "_check_comm_hook", comm_hook)
        on_cpu = functools.partial(_device_type_first, "cpu")
        wrap(device_mesh, "init_device_mesh", lambda original: on_cpu(original, 0))
        wrap(device_mesh.DeviceMesh, "__init__", lambda original: on_cpu(original, 1))
        wrap(device_mesh.DeviceMesh, "from_group", lambda original: on_cpu(original, 1))


def _device_type_first(replacement: str, original: Function, position: int) -> Callable[..., Any]:
    """Replace the argument `device_type`, at this position or by keyword, where it names CUDA."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if str(kwargs.get("device_type")).startswith("cuda"):
            kwargs["device_type"] = replacement
        if len(args) > position and str(args[position]).startswith("cuda"):
            args = (*args[:position], replacement, *args[position + 1 :])
        return original(*args, **kwargs)

    return call
