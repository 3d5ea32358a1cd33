"""The environment variables of a verified run."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Level:
    """At which steps of an optimizer tensors are recorded."""

    kind: str
    number: int = 0

    @classmethod
    def parse(cls, text: str) -> Level:
        """Read `auto`, `full`, `loss`, `every:N` or `first:N`; ValueError for anything else."""
        kind, _, number = text.partition(":")
        if kind in ("auto", "full", "loss") and not number:
            return cls(kind)
        if kind in ("every", "first") and number.isdigit() and int(number) > 0:
            return cls(kind, int(number))
        raise ValueError(f"TO_FSDP2_RECORD_LEVEL: {text!r} is none of auto, full, loss, every:N, first:N")

    def records(self, step: int) -> bool:
        """Whether tensors are recorded at this step, counted from 0."""
        if self.kind == "auto":
            return step < 8 or step & (step - 1) == 0
        if self.kind == "every":
            return step % self.number == 0
        if self.kind == "first":
            return step < self.number
        return self.kind == "full"

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}" if self.number else self.kind


@dataclass(frozen=True)
class Settings:
    """One field for each variable that docs/record-format.md lists."""

    record: str | None
    level: Level
    exact: bool
    perturb: int | None
    emulate_cuda: int
    share_cuda: int
    seed: int | None
    root: str | None
    trace: tuple[str, ...]
    unit_inputs: tuple[str, ...] = ()
    tripwires: bool = False
    observe: bool = False

    @classmethod
    def from_environment(cls) -> Settings:
        """Read the variables; ValueError names the one that is wrong."""
        text = os.environ.get
        mode = text("TO_FSDP2_MODE", "noise")
        if mode not in ("exact", "noise"):
            raise ValueError(f"TO_FSDP2_MODE: {mode!r} is neither exact nor noise")
        return cls(
            record=text("TO_FSDP2_RECORD"),
            level=Level.parse(text("TO_FSDP2_RECORD_LEVEL", "auto")),
            exact=mode == "exact",
            perturb=_integer("TO_FSDP2_PERTURB"),
            emulate_cuda=_integer("TO_FSDP2_EMULATE_CUDA") or 0,
            share_cuda=_integer("TO_FSDP2_SHARE_CUDA") or 0,
            seed=_integer("TO_FSDP2_SEED"),
            root=text("TO_FSDP2_ROOT"),
            trace=tuple(json.loads(text("TO_FSDP2_TRACE", "[]"))),
            tripwires=bool(_integer("TO_FSDP2_TRIPWIRES")),
            observe=bool(_integer("TO_FSDP2_OBSERVE")),
            unit_inputs=tuple(json.loads(text("TO_FSDP2_UNIT_INPUTS", "[]"))),
        )

    @property
    def anything_to_do(self) -> bool:
        """False in a process that merely inherited our folder on its PYTHONPATH."""
        return bool(self.record or self.exact or self.emulate_cuda or self.share_cuda or self.seed is not None)

    @property
    def mode(self) -> str:
        return "exact" if self.exact else "noise"


def _integer(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None or text == "":
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}: {text!r} is not an integer") from None
