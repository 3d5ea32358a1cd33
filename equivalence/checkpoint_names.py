"""What a checkpoint holds, by canonical name: models, optimizers and everything else.

A canonical name is a parameter's fully qualified name (FQN) in the model as its author wrote it, whatever
wrapper trained it. Wrappers show as path components: DistributedDataParallel as `module`, FSDP1 as
`_fsdp_wrapped_module`, activation checkpointing as `_checkpoint_wrapped_module`, torch.compile as
`_orig_mod`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .checkpoint_files import Shards

WRAPPER_COMPONENTS = ("module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")

Order = Sequence[Sequence[str]]
"""The parameters of one optimizer by name, group by group, in the order in which it numbers them."""


def canonical(name: str) -> str:
    """The name without the components that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in WRAPPER_COMPONENTS)


@dataclass
class ModelState:
    """Tensors by canonical name, and the key under which the file holds each."""

    tensors: dict[str, torch.Tensor | Shards] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)

    def prefixes(self) -> set[str]:
        """What the keys have in front of their canonical names: {""} or, say, {"module."}."""
        return {key.removesuffix(name) if key.endswith(name) else key for name, key in self.keys.items()}

    def aliases(self) -> list[set[str]]:
        """Names of one and the same memory (tied parameters), as the file tells."""
        by_memory: dict[tuple[int, int, tuple[int, ...]], set[str]] = {}
        for name, value in self.tensors.items():
            tensor = value.parts[0][1] if isinstance(value, Shards) and value.parts else value
            if isinstance(tensor, torch.Tensor) and tensor.numel():
                place = (tensor.data_ptr(), tensor.numel(), tuple(tensor.shape))
                by_memory.setdefault(place, set()).add(name)
        return [names for names in by_memory.values() if len(names) > 1]


@dataclass
class OptimizerState:
    """State and hyperparameters by canonical parameter name.

    `by_number` says that the file has numbers for names (`Optimizer.state_dict()`); `named` is False where
    the numbers could not be resolved, and the names are then the numbers as text.
    """

    state: dict[str, dict[str, Any]] = field(default_factory=dict)
    hyperparameters: dict[str, dict[str, Any]] = field(default_factory=dict)
    by_number: bool = False
    named: bool = True


@dataclass
class Contents:
    """A checkpoint taken apart. Keys of the dictionaries are the paths inside the file, joined by "/"."""

    models: dict[str, ModelState] = field(default_factory=dict)
    optimizers: dict[str, OptimizerState] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


def take_apart(tree: Any, orders: Sequence[Order] = ()) -> Contents:
    """Sorts a checkpoint's nested dictionaries into models, optimizers and other values.

    A dictionary with `state` and `param_groups` is an optimizer's state; other dictionaries that hold tensors
    directly are a model's. `orders`: the optimizers of the run that wrote it, to name numbered parameters.
    """
    found = Contents()
    unused = list(orders)
    for path, node in _dictionaries(tree):
        name = "/".join(path)
        if _is_optimizer(node):
            found.optimizers[name] = _optimizer(_unflattened(node), unused)
            continue
        model = _model(node)
        if model.tensors:
            found.models[name] = model
        for key, value in node.items():
            if not isinstance(value, (dict, torch.Tensor, Shards)):
                found.values["/".join((*path, str(key)))] = value
    if not isinstance(tree, dict):
        found.values[""] = tree
    return found


def _dictionaries(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[Any, Any]]]:
    """Every dictionary of the tree, parents first; not those inside an optimizer's state."""
    if not isinstance(tree, dict):
        return
    yield path, tree
    if _is_optimizer(tree):
        return
    for key, value in tree.items():
        yield from _dictionaries(value, (*path, str(key)))


def _is_optimizer(node: dict[Any, Any]) -> bool:
    if isinstance(node.get("state"), dict) and isinstance(node.get("param_groups"), list):
        return True
    # flatten_optimizer_state_dict=True writes keys `state.<FQN>.exp_avg` and `param_groups.<FQN>.lr`.
    return bool(node) and all(str(key).startswith(("state.", "param_groups.")) for key in node)


def _unflattened(node: dict[Any, Any]) -> dict[str, Any]:
    if "param_groups" in node:
        return node
    state: dict[str, dict[str, Any]] = {}
    groups: dict[str, dict[str, Any]] = {}
    for key, value in node.items():
        kind, _, rest = str(key).partition(".")
        name, _, entry = rest.rpartition(".")
        (state if kind == "state" else groups).setdefault(name, {})[entry] = value
    return {"state": state, "param_groups": [{**values, "params": [name]} for name, values in groups.items()]}


def _model(node: dict[Any, Any]) -> ModelState:
    held = {str(key): value for key, value in node.items() if isinstance(value, (torch.Tensor, Shards))}
    # A model may have a submodule that is really called `module`; where both names exist, all stay.
    clean = canonical if len({canonical(key) for key in held}) == len(held) else str
    return ModelState({clean(key): value for key, value in held.items()}, {clean(key): key for key in held})


def _optimizer(node: dict[str, Any], orders: list[Order]) -> OptimizerState:
    groups = node["param_groups"]
    numbers = [entry for group in groups for entry in group.get("params", [])]
    by_number = any(isinstance(entry, int) for entry in [*numbers, *node["state"]])
    names = {entry: canonical(str(entry)) for entry in [*numbers, *node["state"]]}
    named = True
    if by_number:
        order = _order_for([len(group.get("params", [])) for group in groups], orders)
        named = order is not None
        if order is not None:
            names.update(zip(numbers, (canonical(name) for group in order for name in group), strict=True))
    found = OptimizerState(by_number=by_number, named=named)
    for entry, state in node["state"].items():
        found.state[names[entry]] = dict(state) if isinstance(state, dict) else {"": state}
    for group in groups:
        values = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        for entry in group.get("params", []):
            found.hyperparameters[names[entry]] = values
    return found


def _order_for(sizes: list[int], orders: list[Order]) -> Order | None:
    """The first recorded optimizer whose groups have these sizes; it is then taken."""
    for order in orders:
        if [len(group) for group in order] == sizes:
            orders.remove(order)
            return order
    return None
