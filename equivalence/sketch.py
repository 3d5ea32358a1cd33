"""Sketches of tensors: adding up the pieces of all ranks, and comparing two of them (docs/record-format.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

CHECKSUM_MODULUS = 1 << 64


@dataclass
class Sketch:
    """The sum of all pieces of one replica of a tensor; `count` is the number of elements seen."""

    count: int = 0
    sumsq: float = 0.0
    absmax: float = 0.0
    nonfinite: int = 0
    checksum: int = 0
    projections: list[float] = field(default_factory=list)

    def add(self, piece: dict[str, Any]) -> None:
        """Adds a piece as it stands in the record."""
        self.count += piece["count"]
        self.sumsq += piece["sumsq"]
        self.absmax = max(self.absmax, piece["absmax"])
        self.nonfinite += piece.get("nonfinite", 0)
        self.checksum = (self.checksum + int(piece["checksum"], 16)) % CHECKSUM_MODULUS
        if not self.projections:
            self.projections = [0.0] * len(piece["projections"])
        self.projections = [a + b for a, b in zip(self.projections, piece["projections"], strict=True)]

    @property
    def norm(self) -> float:
        """The Euclidean norm over the finite elements."""
        return math.sqrt(self.sumsq)


@dataclass
class Tensor:
    """One tensor at one step: a sketch for each replica.

    `missing`: the rank holds elements of the parameter but its gradient is None. `value`: state that is a Python
    number. `unreadable`: why there is no sketch.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    aliases: frozenset[str] = frozenset()
    replicas: dict[str, Sketch] = field(default_factory=dict)
    missing: bool = False
    value: float | None = None
    unreadable: str | None = None

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def sketch(self) -> Sketch | None:
        """The first replica, which stands for all where they agree."""
        return self.replicas[min(self.replicas, key=replica_order)] if self.replicas else None

    @property
    def names(self) -> frozenset[str]:
        return self.aliases | {self.name}

    def replicas_agree(self) -> bool:
        return len({sketch.checksum for sketch in self.replicas.values()}) < 2

    def incomplete(self) -> int | None:
        """The number of elements that the ranks hold together, if it is not the number of elements there are."""
        return next((sketch.count for sketch in self.replicas.values() if sketch.count != self.numel), None)


def replica_order(name: str) -> tuple[int, str]:
    """Sorts replica 10 after replica 9."""
    return (len(name), name)


def identical(old: Tensor, new: Tensor) -> bool:
    """Whether both have the same shape, type and bits."""
    if old.missing or new.missing:
        return old.missing and new.missing
    if old.value is not None or new.value is not None or old.numel == new.numel == 1:
        return _number(old) == _number(new)
    a, b = old.sketch, new.sketch
    if a is None or b is None:
        return a is b
    return (old.shape, old.dtype, a.checksum, a.nonfinite) == (new.shape, new.dtype, b.checksum, b.nonfinite)


def relative_difference(old: Tensor, new: Tensor, floor: float = 0.0) -> float:
    """‖new - old‖ / max(‖old‖, ‖new‖, floor), estimated from the projections: within 0.3 to 1.6 of the truth.

    inf where they cannot be subtracted (other shape, gradient missing on one side, other non-finite elements).
    """
    if identical(old, new):
        return 0.0
    first, second = _number(old), _number(new)
    if first is not None and second is not None:
        scale = max(abs(first), abs(second), floor)
        return abs(first - second) / scale if scale else 0.0
    a, b = old.sketch, new.sketch
    if a is None or b is None or old.missing != new.missing or old.shape != new.shape or a.nonfinite != b.nonfinite:
        return math.inf
    return sketch_difference(a, b, floor)


def sketch_difference(a: Sketch, b: Sketch, floor: float = 0.0) -> float:
    """The estimate itself, for two sketches of tensors of one shape."""
    squares = [(x - y) ** 2 for x, y in zip(a.projections, b.projections, strict=True)]
    scale = max(a.norm, b.norm, floor)
    if not squares or not scale:
        return 0.0
    return math.sqrt(sum(squares) / len(squares)) / scale


def _number(tensor: Tensor) -> float | None:
    """The value of a tensor of one element (`step` of an optimizer is a number here and a tensor there)."""
    if tensor.value is not None:
        return float(tensor.value)
    sketch = tensor.sketch
    if tensor.numel != 1 or sketch is None or not sketch.projections or sketch.nonfinite:
        return None
    # The single element has flat index 0, so that its first projection is the value up to a fixed sign; the sign
    # itself is not needed to compare two of them.
    return sketch.projections[0]
