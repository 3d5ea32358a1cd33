"""Which modules an auto_wrap_policy of FSDP1 would have wrapped."""

from collections.abc import Iterator
from typing import Any

from torch import nn


def parts_with_forward(module: nn.Module) -> list[Any]:
    """`module`, or what it holds if it is a mere container: fully_shard gathers parameters around a forward."""
    if type(module).forward is not nn.Module.forward or "forward" in vars(module):
        return [module]
    return [part for child in module.children() for part in parts_with_forward(child)]


def policy_units(
    model: nn.Module, policy: Any, ignored_modules: set[nn.Module], ignored_params: set[nn.Parameter]
) -> list[tuple[nn.Module, dict[str, Any]]]:
    """The modules that FSDP1 would have wrapped inside `model`, children first, without `model` itself.

    Each comes with the keyword arguments that a CustomPolicy returned for it. Containers without a forward are left
    out: fully_shard refuses them.
    """
    if policy is None:
        return []
    if hasattr(policy, "_run_policy"):  # ModuleWrapPolicy, CustomPolicy: objects that see the whole tree
        chosen = policy._run_policy(model, ignored_modules, {})
        found = [(module, dict(chosen[module])) for module in _children_first(model, set()) if module in chosen]
    else:
        found = [(module, {}) for module in _ask_policy(model, policy, ignored_modules, ignored_params)[0]]
    seen = {model}
    return [
        (module, arguments)
        for module, arguments in found
        if not (module in seen or seen.add(module)) and not isinstance(module, (nn.ModuleList, nn.ModuleDict))
    ]


def _ask_policy(
    module: nn.Module, policy: Any, ignored_modules: set[nn.Module], ignored_params: set[nn.Parameter]
) -> tuple[list[nn.Module], int]:
    """The recursion that FSDP1 runs a policy function in: units below and including `module`, elements in them."""
    size = sum(p.numel() for p in module.parameters() if p not in ignored_params)
    if not policy(module=module, recurse=True, nonwrapped_numel=size):
        return [], 0
    found: list[nn.Module] = []
    wrapped = 0
    for child in module.children():
        if child not in ignored_modules:
            below, count = _ask_policy(child, policy, ignored_modules, ignored_params)
            found, wrapped = found + below, wrapped + count
    if policy(module=module, recurse=False, nonwrapped_numel=size - wrapped):
        return [*found, module], size
    return found, wrapped


def _children_first(module: nn.Module, seen: set[nn.Module]) -> Iterator[nn.Module]:
    for child in module.children():
        if child not in seen:
            seen.add(child)
            yield from _children_first(child, seen)
    yield module
