"""What `verify` concludes: the checks, the two runs, and the figures that a report draws.

Everything here is plain data. `Verdict.to_json` is the machine contract (schema 2, kind `verdict`).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Outcome = Literal["pass", "fail", "warn", "expected", "not compared"]
Judgement = Literal["equivalent", "different", "not judged"]
Side = Literal["old", "new"]

CHECKS = (
    "coverage",
    "loss",
    "gradients",
    "clipping",
    "parameters",
    "optimizer",
    "hyperparameters",
    "buffers",
    "evaluation",
    "scaler",
    "checkpoints",
    "resume",
    "tripwires",
    "communication",
    "memory",
)
"""Every verdict holds each of these exactly once, in this order."""


@dataclass
class CheckResult:
    """The outcome of one check.

    `step` is the first optimizer step (0-based) that differs, `tensor` the first tensor by canonical FQN,
    `difference` its size: relative, ‖new - old‖ / max(‖old‖, ‖new‖), unless the reason says otherwise.
    `causes` are ordered, the likeliest first; `places` are lines of the new side ("train.py:12") that explain it.
    `conclusive`: the results of training cannot show this difference (yet), so that it decides by itself. Without it,
    a difference in how training got there is a warning where its results are the same.
    """

    name: str
    outcome: Outcome
    reason: str
    step: int | None = None
    tensor: str | None = None
    difference: float | None = None
    causes: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    conclusive: bool = False

    def to_json(self) -> dict[str, Any]:
        """As the contract has it; `conclusive` is in the outcome."""
        document = asdict(self)
        del document["conclusive"]
        return document


NOT_RUN = "not run"


@dataclass
class Run:
    """One side as it was run. `failure` is a sentence for the user, None when the run ended well."""

    side: Side
    origin: str
    root: str
    command: list[str]
    ranks: int
    exit_code: int | None = None
    seconds: float = 0.0
    steps: int = 0
    failure: str | None = None
    log: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


@dataclass
class NotExecuted:
    """Changed lines of the new side (1-based, of the file in the new side) that neither side ran."""

    file: str
    lines: list[int]


@dataclass
class TensorDifference:
    """One row of the per-parameter table: the largest relative difference over all recorded steps.

    None where the tensor was not recorded on both sides. `step` is the first step at which any of them differs.
    """

    name: str
    shape: list[int]
    gradient: float | None = None
    parameter: float | None = None
    optimizer: float | None = None
    step: int | None = None


@dataclass
class Traffic:
    """Collectives of one kind and dtype in one training step, on rank 0: calls and payload bytes."""

    kind: str
    dtype: str
    calls: int
    bytes: int


@dataclass
class Series:
    """What the plots of a report need, for each side ("old", "new").

    losses, gradient_norms: one value a step, averaged over ranks and micro-steps (None where not recorded);
    the gradient norm is the global one before clipping.
    communication: the traffic of one steady step. memory: peak bytes of each rank. step_seconds: one value a step.
    """

    losses: dict[str, list[float | None]] = field(default_factory=dict)
    gradient_norms: dict[str, list[float | None]] = field(default_factory=dict)
    parameters: list[TensorDifference] = field(default_factory=list)
    communication: dict[str, list[Traffic]] = field(default_factory=dict)
    memory: dict[str, list[int | None]] = field(default_factory=dict)
    step_seconds: dict[str, list[float]] = field(default_factory=dict)


@dataclass
class BisectedChange:
    """A change that makes the verdict what it is. `line` is its first line on the new side, `old_line` on the old one.

    `rules` are those by which the codemod changes these lines, none where it was somebody else. `patch` are its lines, with
    a sign in front of each; empty for a file that is no Python.
    """

    file: str
    line: int
    old_line: int
    rules: list[str] = field(default_factory=list)
    patch: list[str] = field(default_factory=list)


@dataclass
class Bisection:
    """Which changes make the verdict what it is. Without them, and with `beside` of the others made, it is equivalent.

    `executed` is the number of changes of which a run executed something, `trials` that of the runs this took. `reason`
    says why nothing was found, and is empty where something was.
    """

    changes: list[BisectedChange] = field(default_factory=list)
    beside: int = 0
    executed: int = 0
    trials: int = 0
    reason: str = ""

    @property
    def sentence(self) -> str:
        """What was found, for people."""
        if self.reason:
            return self.reason
        count = len(self.changes)
        which = "1 change makes" if count == 1 else f"{count} changes, which did not come apart, make"
        others = f", and with {self.beside} of the others," if self.beside else ""
        return (
            f"{which} the verdict what it is, of {self.executed} that the runs executed; without "
            f"{'it' if count == 1 else 'them'}{others} it is equivalent ({self.trials} trials)"
        )


@dataclass
class Verdict:
    """The joined evidence. `reason` is one sentence; `notes` say what this kind of run cannot prove."""

    verdict: Judgement
    reason: str
    mode: Literal["exact", "noise"]
    device: str
    checks: list[CheckResult]
    runs: dict[str, Run]
    not_executed: list[NotExecuted] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    series: Series = field(default_factory=Series)
    bisection: Bisection | None = None

    def check(self, name: str) -> CheckResult:
        """The result of the check of that name; KeyError if there is none."""
        for result in self.checks:
            if result.name == name:
                return result
        raise KeyError(name)

    @property
    def exit_code(self) -> int:
        """0 equivalent, 1 different, 2 not judged."""
        return {"equivalent": 0, "different": 1, "not judged": 2}[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """The document of schema 2; the order of the keys is part of what people read.

        JSON has no NaN and no infinity: they become null.
        """
        document = {
            "tool": "to-fsdp2",
            "schema": 2,
            "kind": "verdict",
            "verdict": self.verdict,
            "reason": self.reason,
            "mode": self.mode,
            "device": self.device,
            "checks": [check.to_json() for check in self.checks],
            "runs": {side: asdict(run) for side, run in self.runs.items()},
            "not_executed": [asdict(entry) for entry in self.not_executed],
            "notes": self.notes,
            "bisection": None if self.bisection is None else asdict(self.bisection),
            "series": asdict(self.series),
        }
        return _without_nonfinite(document)


def _without_nonfinite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _without_nonfinite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_nonfinite(entry) for entry in value]
    return value
