"""Records made by hand, for tests of what is concluded from them (docs/record-format.md)."""

from __future__ import annotations

import hashlib
import json
import math
import random
from pathlib import Path
from typing import Any

from to_fsdp2.equivalence.record import Record, read_record

Events = dict[int, list[dict[str, Any]]]
SHAPES: dict[str, tuple[int, ...]] = {"layer.weight": (4, 2), "layer.bias": (4,), "head.weight": (2, 4)}


def sketch(values: list[float], start: int = 0) -> dict[str, Any]:
    """Sketch fields of a piece that begins at flat index `start`; pieces add up as real ones do."""
    projections = [0.0] * 8
    checksum = 0
    for index, value in enumerate(values, start):
        signs = random.Random(index)
        projections = [p + value * signs.choice((-1, 1)) for p in projections]
        digest = hashlib.blake2b(f"{index} {value}".encode(), digest_size=8).digest()
        checksum += int.from_bytes(digest, "big") if value else 0
    finite = [value for value in values if math.isfinite(value)]
    return {
        "count": len(values),
        "sum": sum(finite),
        "sumsq": sum(value * value for value in finite),
        "absmax": max(map(abs, finite), default=0.0),
        "projections": projections,
        "checksum": f"{checksum % (1 << 64):016x}",
    }


def entry(name: str, values: list[float], shape: tuple[int, ...], replica: str, start: int = 0, **more: Any) -> dict[str, Any]:
    """One entry of a `tensors` event."""
    fields = {"name": name, "shape": list(shape), "dtype": "float32", "replica": replica}
    return {**fields, **sketch(values, start), **more}


def values_of(name: str, step: int, kind: str) -> list[float]:
    """Reproducible numbers for a tensor."""
    numbers = random.Random(f"{name} {step} {kind}")
    return [numbers.gauss(0, 1) for _ in range(math.prod(SHAPES[name]))]


def pieces(name: str, values: list[float], rank: int, world: int, layout: str, **more: Any) -> list[dict[str, Any]]:
    """What a rank records of a tensor: all of it as a copy, or its rows."""
    shape = SHAPES[name]
    if layout in ("plain", "ddp"):
        return [entry(name, values, shape, str(rank), **more)]
    row = len(values) // shape[0]
    per_rank = -(-shape[0] // world) * row
    own = values[rank * per_rank : (rank + 1) * per_rank]
    return [entry(name, own, shape, "s", rank * per_rank, **more)] if own else []


def training(layout: str = "fsdp2", world: int = 2, steps: int = 3, micros: int = 1) -> Events:
    """The events of a clean run; the numbers are the same for every layout."""
    events: Events = {}
    for rank in range(world):
        start = {"event": "start", "rank": rank, "world": world, "pid": 1, "root": "/side", "cwd": "/side"}
        events[rank] = [start, optimizer_event(layout)]
        for step in range(steps):
            events[rank] += step_events(step, rank, world, layout, micros)
        modules = {"event": "modules", "files": {}, "installed": {}, "main": "/side/train.py"}
        end = {"event": "end", "steps": steps, "error": None, "time": 0.0}
        events[rank] += [modules, end]
    return events


def optimizer_event(layout: str) -> dict[str, Any]:
    model = {"class": "Net", "layout": layout, "units": 2, "parameters": 20, "checkpointed": 0, "compiled": False}
    group = {"names": list(SHAPES), "numel": 20}
    fields = {"optimizer": 0, "class": "AdamW", "found": 3, "total": 3, "groups": [group], "not_in_optimizer": []}
    return {"event": "optimizer", "step": 0, **fields, "models": [model], "aliases": {}}


def step_events(step: int, rank: int, world: int, layout: str, micros: int) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for micro in range(micros):
        value = 1.0 / (1 + step + micro) + rank
        events.append({"event": "loss", "step": step, "micro": micro, "value": value, "scaled": False})

    def tensors(kind: str, **more: Any) -> dict[str, Any]:
        found = [p for name in SHAPES for p in pieces(name, values_of(name, step, kind), rank, world, layout, **more)]
        return {"event": "tensors", "step": step, "optimizer": 0, "kind": kind, "entries": found}

    if step == 0:
        events.append(tensors("initial", trainable=True))
    clip = {"event": "clip", "step": step, "call": 0, "kind": "norm", "norm": 2.0, "max_norm": 1.0, "norm_type": 2.0}
    events += [tensors("gradient"), {**clip, "tensors": 3, "covered": 3, "total": 3}]
    hyperparameters = {"lr": 0.01, "weight_decay": 0.1, "foreach": layout == "ddp"}
    events.append({"event": "hyperparameters", "step": step, "optimizer": 0, "groups": [hyperparameters]})
    events += [tensors("parameter"), tensors("optimizer", state="exp_avg"), step_event(step, layout, micros)]
    return events


def step_event(step: int, layout: str, micros: int) -> dict[str, Any]:
    sharded = [
        {"op": "all_gather", "dtype": "float32", "count": 4, "bytes": 320},
        {"op": "reduce_scatter", "dtype": "float32", "count": 2, "bytes": 80},
    ]
    whole = [{"op": "all_reduce", "dtype": "float32", "count": 1, "bytes": 80}]
    return {
        "event": "step",
        "step": step,
        "optimizer": 0,
        "optimizer_step": step,
        "skipped": False,
        "micros": micros,
        "recorded": True,
        "seconds": 0.1,
        "recording_seconds": 0.0,
        "collectives": whole if layout == "ddp" else sharded,
        "collectives_complete": True,
        "memory": {"rss_peak": 1000, "cuda_peak": None, "saved": 100_000 if step == 1 else None},
    }


def of(events: Events, name: str, step: int | None = None, /, **fields: Any) -> list[dict[str, Any]]:
    """The events of this name (at a step, with these fields) on all ranks, to be changed in place."""
    wanted = {**fields, **({} if step is None else {"step": step})}
    return [
        event
        for rank in sorted(events)
        for event in events[rank]
        if event["event"] == name and all(event.get(field) == value for field, value in wanted.items())
    ]


def replace_tensor(events: Events, layout: str, kind: str, step: int, name: str, values: list[float]) -> None:
    """Gives a tensor other values, on all ranks, at one step."""
    world = len(events)
    for rank in events:
        for event in events[rank]:
            if event["event"] == "tensors" and event["kind"] == kind and event["step"] == step:
                more = {"state": "exp_avg"} if kind == "optimizer" else {}
                others = [e for e in event["entries"] if e["name"] != name]
                event["entries"] = others + pieces(name, values, rank, world, layout, **more)


def written(events: Events, directory: Path) -> Record:
    """Writes the events as the recorder does, and reads them back."""
    directory.mkdir(parents=True, exist_ok=True)
    for rank, lines in events.items():
        (directory / f"rank{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_record(directory)
