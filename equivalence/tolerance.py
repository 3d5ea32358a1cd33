"""How far two sides may be apart.

In exact mode not at all. In noise mode by as much as the old side is from itself when only the order of its
additions changes: ten times that, because the perturbed run is one sample (measured: it predicts the noise between
wrappers within a factor of 2, gradients of DistributedDataParallel within 5), and never less than rounding.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from .align import pairs, recorded_steps
from .record import Record, TensorKey
from .sketch import relative_difference

FACTOR = 10.0
LOSS_FLOOR = 2e-6
NORM_FLOOR = 1e-6
EPSILON = {"float32": 1.2e-7, "float64": 2.3e-16, "bfloat16": 7.9e-3, "float16": 9.8e-4}
NEGLIGIBLE_GRADIENT = 1e-5
"""A gradient this small against the root mean square of all gradients is rounding noise: biases whose true gradient
is zero, for instance a key projection's. Adam turns such noise into full steps, so these are not compared."""


@dataclass
class Tolerance:
    """Limits of relative differences. Without a control run everything has to be identical."""

    control: Record | None = None
    base: Record | None = None
    _noise: dict[TensorKey, dict[int, float]] = field(default_factory=dict)
    _typical: dict[tuple[str, int], float] = field(default_factory=dict)
    negligible: set[str] = field(default_factory=set)

    @property
    def exact(self) -> bool:
        return self.control is None

    @staticmethod
    def from_control(base: Record, control: Record) -> Tolerance:
        """Learns the noise from two runs of the old side."""
        tolerance = Tolerance(control, base, negligible=_negligible(base))
        for kind in ("gradient", "clipped", "initial", "parameter", "optimizer", "buffer"):
            largest: dict[TensorKey, float] = {}
            for step in recorded_steps(base, control, kind):
                for pair in pairs(base, control, step, kind):
                    if pair.old is None or pair.new is None:
                        continue
                    size = max(largest.get(pair.key, 0.0), relative_difference(pair.old, pair.new))
                    largest[pair.key] = size
                    tolerance._noise.setdefault(pair.key, {})[step] = size
                if largest:
                    tolerance._typical[kind, step] = statistics.median(largest.values())
        return tolerance

    def tensor(self, key: TensorKey, step: int, dtype: str) -> float:
        """The largest relative difference of this tensor that passes."""
        if self.exact:
            return 0.0
        own = self._noise.get(key, {}).get(step, 0.0)
        typical = self._typical.get((key.kind, step), 0.0)
        return FACTOR * max(own, typical, EPSILON.get(dtype, 0.0))

    def largest(self, kind: str) -> float:
        """The largest limit of any tensor of a kind, at any step."""
        noise = [max(steps.values()) for key, steps in self._noise.items() if key.kind == kind]
        return 0.0 if self.exact else FACTOR * max([*noise, EPSILON["float32"]])

    def loss(self, step: int) -> float:
        """The largest relative difference of a loss that passes at this step."""
        if self.control is None or self.base is None:
            return 0.0
        seen = [
            _relative(events[rank]["value"], self.control.losses[key][rank]["value"])
            for key, events in self.base.losses.items()
            if key[0] <= step and key in self.control.losses
            for rank in events.keys() & self.control.losses[key].keys()
        ]
        return max(LOSS_FLOOR, FACTOR * max(seen, default=0.0))

    def evaluation(self, step: int) -> float:
        """The largest relative difference of an output in eval mode that passes after this many steps."""
        return 0.0 if self.exact else max(self.loss(step), self.largest("parameter"))

    def norm(self, step: int) -> float:
        """The largest relative difference of a clip norm that passes at this step.

        Not zero in exact mode either: the returned norm is rounded from float64. What clipping did with it shows,
        bit by bit, in the parameters.
        """
        if self.control is None or self.base is None:
            return NORM_FLOOR
        seen = [
            _relative(events[rank]["norm"], self.control.clips[key][rank]["norm"])
            for key, events in self.base.clips.items()
            if key[0] <= step and key in self.control.clips
            for rank in events.keys() & self.control.clips[key].keys()
        ]
        return max(NORM_FLOOR, FACTOR * max(seen, default=0.0))


def _negligible(record: Record) -> set[str]:
    """Names of parameters whose gradient was never more than noise."""
    largest: dict[str, float] = {}
    for tensors in record.tensors.values():
        gradients = [
            (key.name, tensor.sketch, tensor.numel)
            for key, tensor in tensors.items()
            if key.kind == "gradient" and tensor.sketch is not None and tensor.numel
        ]
        elements = sum(numel for _, _, numel in gradients)
        total = sum(sketch.sumsq for _, sketch, _ in gradients)
        for name, sketch, numel in gradients:
            share = (sketch.sumsq / numel) / (total / elements) if total else 1.0
            largest[name] = max(largest.get(name, 0.0), share)
    return {name for name, share in largest.items() if share < NEGLIGIBLE_GRADIENT**2}


def _relative(a: float | None, b: float | None) -> float:
    if a is None or b is None or a == b:
        return 0.0
    difference = abs(a - b) / max(abs(a), abs(b))
    return difference if difference == difference else 0.0
