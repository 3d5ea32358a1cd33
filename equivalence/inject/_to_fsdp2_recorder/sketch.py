"""Additive sketches: a few numbers about a piece of a tensor that add up to the same numbers about the whole.

The element with global flat index i lies at row i // WIDTH and column i % WIDTH of an imaginary matrix M. A projection
is u' M v with random signs u, v; the checksum weighs the bits with random odd integers modulo 2**64. Both depend on the
global position alone, so the pieces of any sharding add up. docs/record-format.md says what follows from that.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

WIDTH = 1021
PROJECTIONS = 8
ROW_SIGNS = 1 << 16


class _Tables(NamedTuple):
    column_signs: torch.Tensor
    row_signs: torch.Tensor
    column_weights: torch.Tensor
    row_weights: torch.Tensor


_tables: dict[torch.device, _Tables] = {}


def sketch(values: torch.Tensor, start: int | torch.Tensor = 0) -> dict[str, Any]:
    """Sketch a piece of a flattened tensor; returns the JSON fields of docs/record-format.md.

    `values` is 1-D. `start` is the global flat index of its first element or, for a piece that is not contiguous in the
    whole tensor, a 1-D tensor with the global index of every element.
    """
    values = values.detach()
    parts = 1
    if values.is_complex():
        values, parts = torch.view_as_real(values).flatten(), 2
        if isinstance(start, torch.Tensor):
            start = (start[:, None] * 2 + torch.arange(2, device=values.device)).flatten()
        else:
            start = start * 2
    sums = _Sums(values.device)
    if isinstance(start, torch.Tensor):
        sums.add_scattered(values, start)
    else:
        sums.add_contiguous(values, start)
    return {"count": values.numel() // parts, **sums.result()}


class _Sums:
    """The running sums over the blocks of one piece."""

    def __init__(self, device: torch.device) -> None:
        self.tables = _tables.get(device) or _make_tables(device)
        # Blocks that fit into the cache of one core make large tensors several times faster; a GPU wants few kernels.
        self.rows = 128 if device.type == "cpu" else 1 << 14
        self.projections = torch.zeros(PROJECTIONS, dtype=torch.float64, device=device)
        self.checksum = torch.zeros((), dtype=torch.int64, device=device)
        self.total = self.squares = self.largest = 0.0
        self.nonfinite = 0

    def add_contiguous(self, values: torch.Tensor, start: int) -> None:
        # A piece rarely begins where a row does: its first row is filled up with zeros, which weigh nothing.
        row, lead = divmod(start, WIDTH)
        by_column = torch.zeros(PROJECTIONS, WIDTH, dtype=torch.float64, device=values.device)
        position = 0
        while position < values.numel():
            taken = min(values.numel() - position, self.rows * WIDTH - lead)
            numbers, bits = self._measure(values[position : position + taken])
            count = -(-(lead + taken) // WIDTH)
            padding = (lead, count * WIDTH - lead - taken)
            if any(padding):
                numbers = torch.nn.functional.pad(numbers, padding)
                bits = torch.nn.functional.pad(bits, padding)
            rows = torch.arange(row, row + count, device=values.device) % ROW_SIGNS
            by_column.addmm_(self.tables.row_signs[rows].T, numbers.view(count, WIDTH))
            weighed = (bits.view(count, WIDTH) * self.tables.column_weights).sum(1)
            self.checksum += (weighed * self.tables.row_weights[rows]).sum()
            position, row, lead = position + taken, row + count, 0
        self.projections += (by_column * self.tables.column_signs.T).sum(1)

    def add_scattered(self, values: torch.Tensor, index: torch.Tensor) -> None:
        tables = self.tables
        size = self.rows * WIDTH
        for block, where in zip(values.split(size), index.split(size), strict=True):
            rows, columns = (where // WIDTH) % ROW_SIGNS, where % WIDTH
            numbers, bits = self._measure(block)
            signs = tables.row_signs[rows] * tables.column_signs[columns]
            self.projections += (numbers[:, None] * signs).sum(0)
            self.checksum += (bits * tables.column_weights[columns] * tables.row_weights[rows]).sum()

    def _measure(self, block: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the plain statistics of a block; return its finite values in float64 and its bits as integers."""
        numbers = block.double()
        squares = float(torch.dot(numbers, numbers))
        if not math.isfinite(squares):
            finite = torch.isfinite(numbers)
            self.nonfinite += int((~finite).sum())
            numbers = torch.where(finite, numbers, 0.0)
            squares = float(torch.dot(numbers, numbers))
        self.squares += squares
        self.total += float(numbers.sum())
        low, high = numbers.aminmax()
        self.largest = max(self.largest, -float(low), float(high))
        return numbers, _bits(block)

    def result(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "sum": self.total,
            "sumsq": self.squares,
            "absmax": self.largest,
            "projections": self.projections.tolist(),
            "checksum": f"{int(self.checksum) & ((1 << 64) - 1):016x}",
        }
        if self.nonfinite:
            fields["nonfinite"] = self.nonfinite
        return fields


def _bits(block: torch.Tensor) -> torch.Tensor:
    if not block.is_floating_point():
        return block.to(torch.int64)
    if block.element_size() == 1:
        block = block.float()
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[block.element_size()]
    return (block + 0.0).view(integers).to(torch.int64)  # the sum turns -0.0 into 0.0


def _make_tables(device: torch.device) -> _Tables:
    random = torch.Generator(device="cpu").manual_seed(1234)

    def signs(size: int) -> torch.Tensor:
        return torch.randint(0, 2, (size, PROJECTIONS), generator=random, device="cpu").mul_(2).sub_(1).double()

    def weights(size: int) -> torch.Tensor:
        return torch.randint(-(2**62), 2**62, (size,), generator=random, device="cpu") | 1

    tables = _Tables(signs(WIDTH), signs(ROW_SIGNS), weights(WIDTH), weights(ROW_SIGNS))
    _tables[device] = _Tables(*(table.to(device) for table in tables))
    return _tables[device]
