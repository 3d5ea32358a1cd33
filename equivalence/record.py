"""Reads the record of a run (docs/record-format.md): the events of all ranks, shards added up."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .sketch import Sketch, Tensor

Event = dict[str, Any]
FILE_NAME = re.compile(r"rank(\d+)(?:-(\d+))?\.jsonl")


@dataclass(frozen=True)
class TensorKey:
    """What identifies a recorded tensor within a step: kind as in the record, `state` for optimizer state."""

    kind: str
    optimizer: int
    name: str
    state: str = ""


@dataclass
class Record:
    """All that a run recorded. Dictionaries by rank hold what may differ between ranks.

    losses: (step, micro, index) → rank → event. clips: (step, call) → rank → event.
    hyperparameters: (step, optimizer) → groups. tensors: step → key → tensor. steps: step → rank → event.
    """

    starts: dict[int, Event] = field(default_factory=dict)
    ends: dict[int, Event] = field(default_factory=dict)
    losses: dict[tuple[int, int, int], dict[int, Event]] = field(default_factory=dict)
    clips: dict[tuple[int, int], dict[int, Event]] = field(default_factory=dict)
    scaler: dict[int, list[Event]] = field(default_factory=dict)
    optimizers: dict[int, list[Event]] = field(default_factory=dict)
    hyperparameters: dict[tuple[int, int], list[Event]] = field(default_factory=dict)
    tensors: dict[int, dict[TensorKey, Tensor]] = field(default_factory=dict)
    steps: dict[int, dict[int, Event]] = field(default_factory=dict)
    checkpoints: dict[int, list[Event]] = field(default_factory=dict)
    evaluations: dict[int, list[Event]] = field(default_factory=dict)
    tripwires: dict[int, list[Event]] = field(default_factory=dict)
    modules: dict[int, Event] = field(default_factory=dict)
    lines: dict[str, set[int]] = field(default_factory=dict)
    observed: dict[int, list[Event]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def world(self) -> int:
        return max((start["world"] for start in self.starts.values()), default=0)

    @property
    def step_count(self) -> int:
        return max(self.steps, default=-1) + 1

    def micros(self, step: int) -> int:
        """Backward passes within the step; the most that any rank made."""
        return max((event["micros"] for event in self.steps.get(step, {}).values()), default=0)

    def layouts(self) -> set[str]:
        """How the models of the optimizers are wrapped: plain, ddp, fsdp1, fsdp1-flat, fsdp2, replicate."""
        return {model["layout"] for events in self.optimizers.values() for event in events for model in event["models"]}

    def models(self) -> list[Event]:
        """The models of the optimizers as first seen, each once."""
        first = self.optimizers.get(0) or next(iter(self.optimizers.values()), [])
        return [model for event in first[:1] for model in event["models"]]


def read_record(directory: Path) -> Record:
    """The record that the ranks wrote into `directory`; empty if they wrote nothing.

    A rank that trained several times in one process or run (`rank0-1.jsonl`) continues its own count of steps.
    """
    record = Record()
    steps_before: dict[int, int] = {}
    for rank, path in _files(directory):
        offset = steps_before.get(rank, 0)
        events = list(_events(path))
        numbers = _by_first_step(events)
        stepped = {event["optimizer"] for event in events if event["event"] == "step"}
        for event in events:
            if event["event"] == "tensors" and event["optimizer"] not in stepped:
                continue  # gradients that were clipped for another optimizer over the same parameters
            if event.get("optimizer") in numbers:
                event["optimizer"] = numbers[event["optimizer"]]
            if "step" in event:
                event["step"] += offset
                if event["event"] == "step":
                    steps_before[rank] = max(steps_before.get(rank, 0), event["step"] + 1)
            _take(record, rank, event)
    return record


def _by_first_step(events: list[Event]) -> dict[int, int]:
    """Numbers of optimizers in the order of their first steps: one that never steps may have been noticed before."""
    stepped = [event["optimizer"] for event in events if event["event"] == "step"]
    noticed = [event["optimizer"] for event in events if event["event"] == "optimizer"]
    return {number: place for place, number in enumerate(dict.fromkeys([*stepped, *noticed]))}


def _files(directory: Path) -> list[tuple[int, Path]]:
    found: list[tuple[int, int, Path]] = []
    for path in directory.glob("rank*.jsonl"):
        match = FILE_NAME.fullmatch(path.name)
        if match:
            found.append((int(match[1]), int(match[2] or 0), path))
    return [(rank, path) for rank, _, path in sorted(found)]


def _events(path: Path) -> Iterator[Event]:
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            # A killed process leaves half a line at the end.
            if line.endswith("\n"):
                yield json.loads(line)


def _joined(clip: Event, part: Event) -> Event:
    """A call that clips with a norm, and another one for more parameters with the same norm."""
    return {**clip, **{field: clip[field] + part[field] for field in ("tensors", "covered")}}


def _take(record: Record, rank: int, event: Event) -> None:
    kind = event["event"]
    if kind == "start":
        record.starts.setdefault(rank, event)
    elif kind == "end":
        record.ends[rank] = event
    elif kind == "loss":
        record.losses.setdefault((event["step"], event["micro"], event.get("index", 0)), {})[rank] = event
    elif kind == "clip":
        parts = record.clips.setdefault((event["step"], event["call"]), {})
        parts[rank] = _joined(parts[rank], event) if rank in parts else event
    elif kind == "scaler":
        record.scaler.setdefault(rank, []).append(event)
    elif kind == "optimizer":
        record.optimizers.setdefault(rank, []).append(event)
    elif kind == "hyperparameters":
        record.hyperparameters.setdefault((event["step"], event["optimizer"]), event["groups"])
    elif kind == "tensors":
        _take_tensors(record.tensors.setdefault(event["step"], {}), event)
    elif kind == "step":
        record.steps.setdefault(event["step"], {})[rank] = event
    elif kind == "tripwire":
        record.tripwires.setdefault(rank, []).append(event)
    elif kind == "evaluation":
        record.evaluations.setdefault(rank, []).append(event)
    elif kind == "checkpoint":
        record.checkpoints.setdefault(rank, []).append(event)
    elif kind == "observed":
        record.observed.setdefault(rank, []).append(event)
    elif kind == "modules":
        record.modules[rank] = event
    elif kind == "lines":
        for file, lines in event["files"].items():
            record.lines.setdefault(file, set()).update(lines)
    elif kind == "warning":
        record.warnings.append(f"rank {rank}: {event['text']}")


def _take_tensors(tensors: dict[TensorKey, Tensor], event: Event) -> None:
    for entry in event["entries"]:
        key = TensorKey(event["kind"], event["optimizer"], entry["name"], entry.get("state", ""))
        tensor = tensors.get(key)
        if tensor is None:
            tensor = tensors[key] = Tensor(entry["name"], tuple(entry.get("shape", ())), entry.get("dtype", ""))
        tensor.aliases |= frozenset(entry.get("aliases", ()))
        if entry.get("missing"):
            tensor.missing = True
        elif "unreadable" in entry:
            tensor.unreadable = entry["unreadable"]
        elif "value" in entry:
            tensor.value = entry["value"]
        else:
            tensor.replicas.setdefault(str(entry["replica"]), Sketch()).add(entry)
