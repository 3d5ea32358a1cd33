"""The geometry of the report's charts: from series of numbers to lines, ticks and bars.

A chart's plane is 1000 by 1000 units and is stretched to whatever room there is; labels are placed in
percent, as text of the page, so that they keep their size on a narrow screen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from .verdict import Series, Traffic

PLANE = 1000
_ROUNDING = 1e-13
_ZERO_BAND = 0.16
"""Share of a logarithmic chart's height, at the bottom, where exact zeros lie."""

Values = Sequence[float | None]


@dataclass
class Tick:
    """A label and its place in percent of the plane, from the left or from the top."""

    place: float
    label: str


@dataclass
class Line:
    """One series as an SVG path; values that are missing or not finite leave a gap. `kind` picks the
    colour."""

    label: str
    kind: str
    path: str
    values: list[float | None]


@dataclass
class Chart:
    """Lines over steps, with a scale on the left and steps below. `note` says what cannot be seen in it."""

    name: str
    title: str
    lines: list[Line]
    steps: int
    vertical: list[Tick] = field(default_factory=list)
    horizontal: list[Tick] = field(default_factory=list)
    note: str = ""


@dataclass
class Bars:
    """A labelled pair of bars, old and new; `share` is the length in percent of the longest of its chart."""

    label: str
    old: str
    new: str
    old_share: float
    new_share: float
    differs: bool


def line_chart(name: str, title: str, series: dict[str, Values], labels: dict[str, str]) -> Chart | None:
    """Curves on a linear scale, keyed by kind ("old", "new"); None if there is no finite value at all."""
    finite = _finite(series.values())
    if not finite:
        return None
    low, high = min(finite), max(finite)
    margin = (high - low or abs(high) or 1.0) * 0.06
    low, high = low - margin, high + margin

    def height(value: float) -> float:
        return (high - value) / (high - low)

    steps = max(len(values) for values in series.values())
    lines = [Line(labels[kind], kind, _path(values, steps, height), list(values)) for kind, values in series.items()]
    ticks = [Tick(100 * height(value), short(value)) for value in round_values(low, high)]
    return Chart(name, title, lines, steps, ticks, _step_ticks(steps), _gaps(series, labels))


def difference_chart(name: str, title: str, series: dict[str, tuple[str, Values]]) -> Chart | None:
    """Relative differences on a logarithmic scale, keyed by kind, each with its label.

    Exact zeros, which a logarithm cannot show, lie on a line of their own at the bottom.
    """
    finite = _finite(values for _, values in series.values())
    if not finite:
        return None
    positive = [value for value in finite if value > 0]
    top = math.ceil(math.log10(max(positive))) if positive else 0
    bottom = min(math.floor(math.log10(min(positive))), top - 2) if positive else -8
    above = 1 - _ZERO_BAND

    def height(value: float) -> float:
        if value == 0:
            return 1 - _ZERO_BAND / 2
        return above * (top - math.log10(value)) / (top - bottom)

    steps = max(len(values) for _, values in series.values())
    lines = [Line(label, kind, _path(values, steps, height), list(values)) for kind, (label, values) in series.items()]
    every = math.ceil((top - bottom) / 5)
    ticks = [Tick(100 * height(10.0**power), f"1e{power}" if power else "1") for power in range(bottom, top + 1, every)]
    ticks.append(Tick(100 * height(0), "equal"))
    return Chart(name, title, lines, steps, ticks, _step_ticks(steps))


def differences(old: Values, new: Values) -> list[float | None]:
    """Relative difference, step by step: |new - old| / max(|old|, |new|)."""
    found: list[float | None] = []
    for a, b in zip(old, new, strict=False):
        if a is None or b is None or not (math.isfinite(a) and math.isfinite(b)):
            found.append(None)
        else:
            found.append(abs(b - a) / max(abs(a), abs(b)) if a != b else 0.0)
    return found


def charts(series: Series) -> list[Chart]:
    """The charts that the figures of a verdict allow."""
    labels = {"old": "old", "new": "new"}
    losses, norms = series.losses, series.gradient_norms
    found = [
        line_chart("loss", "Loss", dict(losses), labels),
        line_chart("norm", "Gradient norm before clipping", dict(norms), labels),
        difference_chart(
            "difference",
            "Relative difference",
            {
                "loss": ("loss", differences(losses.get("old", []), losses.get("new", []))),
                "norm": ("gradient norm", _above_rounding(differences(norms.get("old", []), norms.get("new", [])))),
            },
        ),
        line_chart("seconds", "Seconds a step", _without_first(series.step_seconds), labels),
    ]
    return [chart for chart in found if chart is not None]


def _above_rounding(values: Values) -> list[float | None]:
    """Norms are added up in float64 from the shards of each side: below its rounding they are equal."""
    return [0.0 if value is not None and value < _ROUNDING else value for value in values]


def _without_first(seconds: dict[str, list[float]]) -> dict[str, Values]:
    """The first step sets everything up; it would flatten the rest."""
    return {side: [None, *values[1:]] if len(values) > 1 else values for side, values in seconds.items()}


def traffic_bars(communication: dict[str, list[Traffic]]) -> list[Bars]:
    """One pair of bars for each kind and dtype of collective: bytes a step, with the number of calls."""
    sides = {side: {(t.kind, t.dtype): t for t in traffic} for side, traffic in communication.items()}
    old, new = sides.get("old", {}), sides.get("new", {})
    longest = max((t.bytes for side in sides.values() for t in side.values()), default=0)
    found: list[Bars] = []
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        same = a is not None and b is not None and (a.calls, a.bytes) == (b.calls, b.bytes)
        kind, dtype = key
        label = f"{kind.replace('_', '-')} {dtype}"
        found.append(Bars(label, _traffic(a), _traffic(b), _share(a, longest), _share(b, longest), not same))
    return found


def memory_bars(memory: dict[str, list[int | None]]) -> list[Bars]:
    """One pair of bars for each rank: peak bytes."""
    old, new = memory.get("old", []), memory.get("new", [])
    longest = max((value for value in [*old, *new] if value), default=0)
    found: list[Bars] = []
    for rank in range(max(len(old), len(new))):
        a = old[rank] if rank < len(old) else None
        b = new[rank] if rank < len(new) else None
        if a is None and b is None:
            continue
        far = a is None or b is None or abs(a - b) > 0.1 * max(a, b)
        shares = [100 * (value or 0) / longest if longest else 0.0 for value in (a, b)]
        found.append(Bars(f"rank {rank}", in_bytes(a), in_bytes(b), shares[0], shares[1], far))
    return found


def in_bytes(count: int | None) -> str:
    """1536 → "1.5 KiB"; None → "none"."""
    if count is None:
        return "none"
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.3g} {unit}"


def short(value: float) -> str:
    """A number for an axis or a label: at most four digits."""
    return f"{value:.4g}"


def _finite(several: Iterable[Values]) -> list[float]:
    return [value for values in several for value in values if value is not None and math.isfinite(value)]


def is_finite(value: float | None) -> bool:
    """Whether there is a value, and neither NaN nor infinite."""
    return value is not None and math.isfinite(value)


def round_values(low: float, high: float, wanted: int = 5) -> list[float]:
    """About `wanted` round numbers between low and high, 1, 2 or 5 times a power of ten apart."""
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    apart = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first, last = math.ceil(low / apart), math.floor(high / apart)
    return [round(i * apart, 12) for i in range(first, last + 1)]


def _path(values: Values, steps: int, height: Callable[[float], float]) -> str:
    """An SVG path; a lone point becomes a stroke of no length, which round caps show as a dot."""
    parts: list[str] = []
    drawing = False
    for step, value in enumerate(values):
        if value is None or not math.isfinite(value):
            drawing = False
            continue
        x, y = PLANE * _across(step, steps), PLANE * height(value)
        parts.append(f"{'L' if drawing else 'M'}{x:.1f} {y:.1f}")
        alone = not drawing and (step + 1 >= len(values) or not is_finite(values[step + 1]))
        if alone:
            parts.append("h0.1")
        drawing = True
    return "".join(parts)


def _across(step: int, steps: int) -> float:
    return step / (steps - 1) if steps > 1 else 0.5


def _step_ticks(steps: int) -> list[Tick]:
    if steps <= 1:
        return [Tick(50.0, "0")]
    every = max(1, math.ceil((steps - 1) / 6))
    return [Tick(100 * _across(step, steps), str(step)) for step in range(0, steps, every)]


def _gaps(series: dict[str, Values], labels: dict[str, str]) -> str:
    notes: list[str] = []
    for kind, values in series.items():
        bad = [step for step, value in enumerate(values) if value is not None and not math.isfinite(value)]
        if bad:
            notes.append(f"{labels[kind]} is not finite at {len(bad)} step(s), first at {bad[0]}")
    return "; ".join(notes)


def _traffic(traffic: Traffic | None) -> str:
    return f"{traffic.calls} × · {in_bytes(traffic.bytes)}" if traffic else "none"


def _share(traffic: Traffic | None, longest: int) -> float:
    return 100 * traffic.bytes / longest if traffic and longest else 0.0
