"""What is recorded about one optimizer: which parameters it holds, their gradients, values and state."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from .journal import Journal
from .layout import Layout, Piece
from .models import Model, find_models
from .settings import Level
from .sketch import sketch


class OptimizerRecord:
    """Follows one optimizer; `index` counts optimizers in the order in which they were first seen at work."""

    def __init__(
        self,
        index: int,
        optimizer: Optimizer,
        journal: Journal,
        level: Level,
        rank: int,
        all_records: Collection[OptimizerRecord],
    ) -> None:
        self.index = index
        self.optimizer = weakref.ref(optimizer)
        self.steps = 0
        self.models: list[Model] = []
        self.uses_ddp = False
        self.inner: list[Optimizer] = []
        self.built_at: str | None = None
        self._journal = journal
        self._level = level
        self._rank = rank
        self._all_records = all_records
        self._layout = Layout([], rank)
        self._described: list[int] = []
        self._have_gradients = False
        self._initial: set[int] = set()

    @property
    def recorded(self) -> bool:
        """Whether tensors are recorded at the current step."""
        return self._level.records(self.steps)

    def trained(self) -> dict[int, torch.Tensor]:
        """The parameters of the models, by identity."""
        return self._layout.parameters

    def finish_step(self) -> None:
        """The next step begins."""
        self.steps += 1
        self._have_gradients = False

    def describe(self, step: int) -> None:
        """Write the `optimizer` event, unless the optimizer holds the same parameters as when it was last written."""
        parameters = [parameter for _, parameter in self._parameters()]
        identities = [id(parameter) for parameter in parameters]
        if identities == self._described:
            return
        self._described = identities
        self.models = find_models(parameters)
        self._layout = Layout(self.models, self._rank)
        descriptions = [model.describe() for model in self.models]
        self.uses_ddp = any(description["layout"] == "ddp" for description in descriptions)
        optimizer = self._optimizer()
        self._journal.write(
            "optimizer",
            step=step,
            optimizer=self.index,
            **{"class": type(optimizer).__name__},
            found=sum(self._layout.knows(parameter) for parameter in parameters),
            total=len(parameters),
            built_at=self.built_at,
            groups=self._group_names(),
            not_in_optimizer=self._left_out(),
            models=descriptions,
            aliases=self._layout.aliases(),
        )

    def hyperparameters(self, step: int) -> None:
        """Write what the parameter groups say during this step."""
        groups = []
        for group in self._optimizer().param_groups:
            readable = ((key, _plain(value)) for key, value in group.items() if key != "params")
            groups.append({key: value for key, value in readable if value is not _UNREADABLE})
        self._journal.write("hyperparameters", step=step, optimizer=self.index, groups=groups)

    def initial(self, step: int) -> None:
        """Write all parameters of the models, once, before they are changed for the first time."""
        if self.steps > 0 or not self.recorded:
            return
        seen = set().union(*(record._initial for record in self._all_records))
        new = [model for model in self.models if id(model.root) not in seen]
        self._initial = {id(model.root) for model in new}
        entries = []
        for parameter in Layout(new, self._rank).parameters.values():
            for piece in self._layout.pieces(parameter, parameter, "?"):
                entries += _entries(piece, trainable=parameter.requires_grad)
        self._write(step, "initial", entries)

    def gradients(self, step: int, clipped: bool = False) -> None:
        """Write the gradients at the first call in a step; at a later one, after clipping, what has become of them."""
        if not self.recorded or (self._have_gradients and not clipped):
            return
        self.describe(step)
        kind = "clipped" if self._have_gradients else "gradient"
        self._have_gradients = True
        # Fused optimizers unscale while they step; torch.amp.GradScaler leaves them the scale here.
        scale = getattr(self._optimizer(), "grad_scale", None)
        entries: list[dict[str, Any]] = []
        for fallback, parameter in self._parameters():
            if parameter.grad is None:
                pieces = self._layout.pieces(parameter, parameter, fallback)
                entries += ({**_named(piece), "missing": True} for piece in pieces if not _is_empty(piece))
                continue
            gradient = parameter.grad if scale is None else parameter.grad / scale
            for piece in self._layout.pieces(parameter, gradient, fallback):
                entries += _entries(piece)
        self._write(step, kind, entries)

    def results(self, step: int) -> None:
        """Write what the step has left: parameters, optimizer state and buffers."""
        if not self.recorded:
            return
        parameters: list[dict[str, Any]] = []
        states: list[dict[str, Any]] = []
        for fallback, parameter in self._parameters():
            for piece in self._layout.pieces(parameter, parameter, fallback):
                parameters += _entries(piece)
            for name, value in self._state_of(parameter):
                if not isinstance(value, torch.Tensor):
                    owner = self._layout.names_of(parameter, fallback)[0]
                    states.append({"name": owner, "state": name, "value": value})
                    continue
                for piece in self._layout.pieces(parameter, value, fallback):
                    states += _entries(piece, state=name)
        self._write(step, "parameter", parameters)
        self._write(step, "optimizer", states)
        buffers: list[dict[str, Any]] = []
        for model in self.models:
            for name, buffer in model.buffers().items():
                for piece in self._layout.pieces(buffer, buffer, name):
                    buffers += _entries(piece)
        self._write(step, "buffer", buffers)

    def _write(self, step: int, kind: str, entries: list[dict[str, Any]]) -> None:
        self._journal.write("tensors", step=step, optimizer=self.index, kind=kind, entries=entries)

    def _optimizer(self) -> Optimizer:
        optimizer = self.optimizer()
        assert optimizer is not None
        return optimizer

    def _parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The optimizer's parameters, each with a name for the case that no model has it."""
        position = 0
        for group in self._optimizer().param_groups:
            for parameter in group["params"]:
                yield f"?{position}", parameter
                position += 1

    def _group_names(self) -> list[dict[str, Any]]:
        named = self._parameters()
        groups = []
        for group in self._optimizer().param_groups:
            names: list[str] = []
            for _ in group["params"]:
                fallback, parameter = next(named)
                names += self._layout.names_of(parameter, fallback)
            groups.append({"names": names})
        return groups

    def _left_out(self) -> list[str]:
        """Names of trainable parameters of the models that no optimizer seen so far holds."""
        held = {key for record in self._all_records for key in record._described}
        return sorted(
            name
            for key, parameter in self._layout.parameters.items()
            if parameter.requires_grad and key not in held
            for name in self._layout.names_of(parameter, "?")
        )

    def _state_of(self, parameter: torch.Tensor) -> Iterator[tuple[str, Any]]:
        for optimizer in (self._optimizer(), *self.inner):
            if parameter in optimizer.state:
                yield from _flattened("", optimizer.state[parameter])
                return


def _named(piece: Piece) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": piece.name, "shape": list(piece.shape), "replica": piece.replica}
    if piece.aliases:
        fields["aliases"] = list(piece.aliases)
    return fields


def _is_empty(piece: Piece) -> bool:
    return piece.values is not None and piece.values.numel() == 0


def _entries(piece: Piece, **fields: Any) -> Iterable[dict[str, Any]]:
    """The entry of a piece; none for a piece without elements."""
    if piece.values is None:
        return [{**_named(piece), **fields, "unreadable": piece.unreadable}]
    if _is_empty(piece):
        return []
    dtype = str(piece.values.dtype).removeprefix("torch.")
    return [{**_named(piece), **fields, "dtype": dtype, **sketch(piece.values, piece.start)}]


_UNREADABLE = object()


def _plain(value: Any) -> Any:
    """A hyperparameter as JSON, or _UNREADABLE."""
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else _UNREADABLE
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        items = [_plain(item) for item in value]
        return _UNREADABLE if any(item is _UNREADABLE for item in items) else items
    return _UNREADABLE


def _flattened(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Tensors and numbers in an optimizer state, which may nest lists and dicts."""
    if isinstance(value, (torch.Tensor, bool, int, float)):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _flattened(f"{name}.{key}" if name else str(key), item)
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from _flattened(f"{name}.{position}", item)
