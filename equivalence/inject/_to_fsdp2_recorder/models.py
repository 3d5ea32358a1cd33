"""Find the models that optimizers train, and the canonical name of everything in them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

# Children that a wrapper adds; what they hold keeps the name that it had without the wrapper.
WRAPPER_COMPONENTS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")


def is_a(value: Any, module: str, name: str) -> bool:
    """isinstance, for a class of a module that may never have been imported."""
    cls = getattr(sys.modules.get(module), name, None)
    return cls is not None and isinstance(value, cls)


def is_fsdp1(module: nn.Module) -> bool:
    return is_a(module, "torch.distributed.fsdp", "FullyShardedDataParallel")


def is_fsdp2(module: nn.Module) -> bool:
    return is_a(module, "torch.distributed.fsdp", "FSDPModule")


def is_ddp(module: nn.Module) -> bool:
    return isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel))


def clean(name: str) -> str:
    """Drop the components of wrappers from a dotted name that torch reports."""
    return ".".join(part for part in name.split(".") if part not in WRAPPER_COMPONENTS)


def modules_with_paths(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module with its canonical path, a shared module once for each of its paths."""
    yield from _walk(root, "", ())


def _walk(module: nn.Module, path: str, above: tuple[int, ...]) -> Iterator[tuple[str, nn.Module]]:
    if id(module) in above:
        return
    yield path, module
    for key, child in module._modules.items():
        if child is None:
            continue
        hidden = key in WRAPPER_COMPONENTS or (key == "module" and is_ddp(module))
        yield from _walk(child, path if hidden else join(path, key), (*above, id(module)))


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


@dataclass
class Model:
    """A root module with the names of its parameters.

    `names` maps the id of a parameter to all its canonical names, sorted. What FSDP1's flat parameters hold is known to
    its units alone.
    """

    root: nn.Module
    prefix: str = ""
    names: dict[int, list[str]] = field(default_factory=dict)
    parameters: dict[int, nn.Parameter] = field(default_factory=dict)
    fsdp1_units: list[tuple[str, nn.Module]] = field(default_factory=list)

    @classmethod
    def of(cls, root: nn.Module, prefix: str = "") -> Model:
        model = cls(root, prefix)
        modules = list(modules_with_paths(root))
        sharded = _sharded_parameters(module for _, module in modules)
        for path, module in modules:
            if is_fsdp1(module):
                model.fsdp1_units.append((prefix + path, module))
            for key, parameter in module._parameters.items():
                parameter = sharded.get((id(module), key), parameter)
                if parameter is not None:
                    model._add(parameter, prefix + join(path, key))
        for names in model.names.values():
            names.sort()
        return model

    def _add(self, parameter: nn.Parameter, name: str) -> None:
        self.parameters[id(parameter)] = parameter
        names = self.names.setdefault(id(parameter), [])
        if name not in names:
            names.append(name)

    def buffers(self) -> dict[str, torch.Tensor]:
        """Canonical name to buffer, persistent or not."""
        found: dict[str, torch.Tensor] = {}
        for path, module in modules_with_paths(self.root):
            for key, buffer in module._buffers.items():
                if buffer is not None:
                    found[self.prefix + join(path, key)] = buffer
        return found

    def layout(self) -> str:
        """How the model is wrapped: plain, ddp, fsdp1, fsdp1-flat or fsdp2."""
        return _layout([module for _, module in modules_with_paths(self.root)])[0]

    def describe(self) -> dict[str, Any]:
        """An entry of `models` in the `optimizer` event."""
        from .units import units_of  # which needs this module's notion of a wrapper

        named = list({id(module): (path, module) for path, module in modules_with_paths(self.root)}.values())
        modules = [module for _, module in named]
        layout, units = _layout(modules)
        return {
            "class": _class_name(_unwrapped(self.root)),
            "layout": layout,
            "units": units,
            "unit_modules": units_of(named),
            "parameters": self.elements(),
            "checkpointed": sum("_checkpoint_wrapped_module" in module._modules for module in modules),
            "compiled": any(
                "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None
                for module in modules
            ),
        }

    def elements(self) -> int:
        """Elements of all parameters in the whole model, each tied tensor once."""
        flat = 0
        managed: set[int] = set()
        for _, unit in self.fsdp1_units:
            handle = getattr(unit, "_handle", None)
            if handle is not None:
                managed.add(id(handle.flat_param))
                managed.update(id(parameter) for parameter in handle.flat_param._params or ())
                flat += sum(shape.numel() for shape in handle.flat_param._shapes)
        return flat + sum(p.numel() for key, p in self.parameters.items() if key not in managed)


def _unwrapped(module: nn.Module) -> nn.Module:
    keys = (*WRAPPER_COMPONENTS, "module") if is_ddp(module) else WRAPPER_COMPONENTS
    for key in keys:
        inner = module._modules.get(key)
        if inner is not None:
            return _unwrapped(inner)
    return module


def _class_name(module: nn.Module) -> str:
    # fully_shard gives a module a class of its own, with the former one as its last base.
    return (type(module).__bases__[-1] if is_fsdp2(module) else type(module)).__name__


def _layout(modules: list[nn.Module]) -> tuple[str, int]:
    fsdp1 = [module for module in modules if is_fsdp1(module)]
    if fsdp1:
        flat = any(not getattr(module, "_use_orig_params", True) for module in fsdp1)
        return ("fsdp1-flat" if flat else "fsdp1"), len(fsdp1)
    fsdp2 = [module for module in modules if is_fsdp2(module)]
    if fsdp2:
        return "fsdp2", len(fsdp2)
    ddp = [module for module in modules if is_ddp(module)]
    return ("ddp", len(ddp)) if ddp else ("plain", 0)


def _sharded_parameters(modules: Iterable[nn.Module]) -> dict[tuple[int, str], nn.Parameter]:
    """FSDP2's sharded parameters by owner and key: a unit that is unsharded has plain ones registered instead."""
    found: dict[tuple[int, str], nn.Parameter] = {}
    for module in modules:
        if not is_fsdp2(module):
            continue
        state: Any = module._get_fsdp_state()  # pyright: ignore[reportCallIssue]
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:
            groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
        for group in groups:
            for parameter in group.fsdp_params:
                info = parameter._module_info
                found[id(info.module), info.param_name] = parameter.sharded_param
                for owner, name in zip(info.shared_modules, info.shared_param_names, strict=True):
                    found[id(owner), name] = parameter.sharded_param
    return found


def find_models(parameters: Iterable[torch.Tensor]) -> list[Model]:
    """The live root modules that hold these parameters, the one that holds most of them first.

    What no live module holds is missed on purpose: an optimizer that was built before `fully_shard` holds such
    parameters, and they are never trained.
    """
    wanted = {id(parameter): position for position, parameter in enumerate(parameters)}
    modules = [value for value in gc.get_objects() if issubclass(type(value), nn.Module)]
    children = {id(child) for module in modules for child in vars(module).get("_modules", {}).values()}
    candidates = []
    for module in modules:
        if id(module) in children or "_modules" not in vars(module):
            continue
        model = Model.of(module)
        held = wanted.keys() & model.names.keys()
        if held:
            candidates.append((model, held))
    found: list[Model] = []
    while candidates and wanted:
        # Most parameters first, then the smaller root, then the order in the optimizer.
        model, held = min(
            candidates,
            key=lambda entry: (
                -len(entry[1] & wanted.keys()),
                len(entry[0].names),
                min((wanted[key] for key in entry[1] & wanted.keys()), default=0),
            ),
        )
        taken = held & wanted.keys()
        if not taken:
            break
        found.append(Model.of(model.root, f"{len(found)}/" if found else ""))
        for key in taken:
            del wanted[key]
    return found
