"""Which elements of which parameter a local tensor holds, for every way of wrapping a model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from .models import Model, clean, is_a, join


@dataclass(frozen=True)
class Piece:
    """A part of a tensor that this rank holds, as `sketch` wants it, or why it cannot be read."""

    name: str
    aliases: tuple[str, ...]
    shape: tuple[int, ...]
    replica: str
    values: torch.Tensor | None = None
    start: int | torch.Tensor = 0
    unreadable: str | None = None


@dataclass(frozen=True)
class _Range:
    """A run of one parameter inside FSDP1's local shard: elements [start, start + count) lie at `position`."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    start: int
    count: int
    position: int


class Layout:
    """Names and pieces for the parameters of a few models, looked up by the identity of the parameter."""

    def __init__(self, models: list[Model], rank: int) -> None:
        self._rank = rank
        self._ranges: dict[int, list[_Range]] = {}
        self._replicas: dict[int, str] = {}
        self._names: dict[int, tuple[str, ...]] = {}
        self._flat_names: dict[int, list[tuple[str, ...]]] = {}
        self.parameters: dict[int, torch.Tensor] = {}
        for model in models:
            self._names.update({key: tuple(names) for key, names in model.names.items()})
            self.parameters.update(model.parameters)
            for path, unit in model.fsdp1_units:
                self._add_fsdp1(path, unit)

    def knows(self, parameter: torch.Tensor) -> bool:
        return id(parameter) in self._names

    def names_of(self, parameter: torch.Tensor, fallback: str) -> list[str]:
        """Canonical names of what the parameter holds: one, or all of a flat parameter's."""
        ranges = self._flat_names.get(id(parameter))
        if ranges is not None:
            return [names[0] for names in ranges]
        return [self._names.get(id(parameter), (fallback,))[0]]

    def aliases(self) -> dict[str, list[str]]:
        """Name to further names, for tied tensors."""
        names = [*self._names.values(), *itertools.chain(*self._flat_names.values())]
        return {first: list(others) for first, *others in names if others}

    def pieces(self, parameter: torch.Tensor, tensor: torch.Tensor, fallback: str) -> Iterator[Piece]:
        """The pieces of a tensor that is aligned with `parameter`: itself, its gradient, or optimizer state."""
        names = self._names.get(id(parameter), (fallback,))
        if is_a(tensor, "torch.distributed.tensor", "DTensor"):
            yield self._dtensor_piece(tensor, names)
        elif id(parameter) in self._ranges:
            yield from self._fsdp1_pieces(parameter, tensor)
        else:
            yield Piece(names[0], names[1:], tuple(tensor.shape), str(self._rank), tensor.detach().reshape(-1))

    # FSDP1

    def _add_fsdp1(self, path: str, unit: Any) -> None:
        handle = getattr(unit, "_handle", None)
        if handle is None:
            return
        flat = handle.flat_param
        sharded = handle.uses_sharded_strategy
        between_nodes = getattr(unit, "_inter_node_pg", None)
        replica = "0" if sharded else str(self._rank)
        if sharded and between_nodes is not None:
            replica = str(between_nodes.rank())
        names = _fsdp1_names(path, flat)
        length = flat._sharded_size.numel() if sharded else sum(flat._numels_with_padding)
        ranges = list(_fsdp1_ranges(flat, names, (handle.rank if sharded else 0) * length, length))
        if not handle._use_orig_params:
            self._ranges[id(flat)] = ranges
            self._replicas[id(flat)] = replica
            self._flat_names[id(flat)] = names
            return
        held = {part.names: part for part in ranges}
        for parameter, own in zip(flat._params, names, strict=True):
            # Here a parameter is a view of its part of the shard, which may be empty.
            every = tuple(sorted({*own, *self._names.get(id(parameter), ())}))
            self._names[id(parameter)] = every
            self._ranges[id(parameter)] = [replace(held[own], names=every, position=0)] if own in held else []
            self._replicas[id(parameter)] = replica

    def _fsdp1_pieces(self, parameter: torch.Tensor, tensor: torch.Tensor) -> Iterator[Piece]:
        replica = self._replicas[id(parameter)]
        for held in self._ranges[id(parameter)]:
            name, aliases = held.names[0], held.names[1:]
            if tensor.dim() == 0:
                yield Piece(name, aliases, (), str(self._rank), tensor.detach().reshape(1))
            elif tensor.numel() < held.position + held.count:
                reason = f"{tensor.numel()} elements where the shard has {parameter.numel()}"
                yield Piece(name, aliases, held.shape, replica, unreadable=reason)
            else:
                values = tensor.detach().reshape(-1)[held.position : held.position + held.count]
                yield Piece(name, aliases, held.shape, replica, values, held.start)

    # DTensor

    def _dtensor_piece(self, tensor: Any, names: tuple[str, ...]) -> Piece:
        shape = tuple(tensor.shape)
        mesh, placements = tensor.device_mesh, tensor.placements
        coordinate = mesh.get_coordinate()
        if coordinate is None or any(type(p).__name__ not in ("Shard", "Replicate") for p in placements):
            reason = f"placements {placements} on this rank are not understood"
            return Piece(names[0], names[1:], shape, str(self._rank), unreadable=reason)
        bounds = [(0, size) for size in shape]
        replica = []
        for place, count, placement in zip(coordinate, mesh.shape, placements, strict=True):
            if placement.is_shard():
                low, high = bounds[placement.dim]
                chunk = -(-(high - low) // count)
                bounds[placement.dim] = (min(low + place * chunk, high), min(low + (place + 1) * chunk, high))
            else:
                replica.append(str(place))
        local = tensor.to_local()
        if type(local).__name__ == "AsyncCollectiveTensor":
            local = local.wait()
        values, start = local.detach().reshape(-1), _positions(shape, bounds, local.device)
        return Piece(names[0], names[1:], shape, "-".join(replica) or "0", values, start)


def _positions(shape: tuple[int, ...], bounds: list[tuple[int, int]], device: torch.device) -> int | torch.Tensor:
    """Global flat index of a block: of its first element if it is contiguous in the whole, else of every element."""
    strides = [math.prod(shape[dimension + 1 :]) for dimension in range(len(shape))]
    if all(low == 0 and high == size for (low, high), size in zip(bounds[1:], shape[1:], strict=True)):
        return bounds[0][0] * strides[0] if shape else 0
    index = torch.zeros((), dtype=torch.int64, device=device)
    for (low, high), stride in zip(bounds, strides, strict=True):
        index = index[..., None] + torch.arange(low, high, device=device) * stride
    return index.reshape(-1)


def _fsdp1_names(path: str, flat: Any) -> list[tuple[str, ...]]:
    """All names of each original parameter in a flat parameter, in its order."""
    names = [{join(path, clean(name))} for name in flat._fqns]
    owners = [(info.module, info.param_name) for info in flat._param_infos]
    for shared in flat._shared_param_infos:
        position = next(
            place
            for place, (module, name) in enumerate(owners)
            if module is shared.prim_module and name == shared.prim_param_name
        )
        names[position].add(join(path, clean(join(shared.module_name, shared.param_name))))
    return [tuple(sorted(group)) for group in names]


def _fsdp1_ranges(flat: Any, names: list[tuple[str, ...]], first: int, length: int) -> Iterator[_Range]:
    """What of each original parameter lies in elements [first, first + length) of the flat parameter."""
    position = 0
    originals = iter(zip(names, flat._shapes, strict=True))
    for numel, padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
        if not padding:
            own, shape = next(originals)
            low, high = max(position, first), min(position + numel, first + length)
            if low < high:
                yield _Range(own, tuple(shape), low - position, high - low, low - first)
        position += numel
