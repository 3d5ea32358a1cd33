"""The mistakes that the harness must find, each put into an otherwise right migration of `scripts/faulty_gpt.py`.

`python faults.py` runs them all and prints what found each one, beside what comparing losses alone would have found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from to_fsdp2.equivalence import checkpoints, expected
from to_fsdp2.equivalence.causes import add_causes
from to_fsdp2.equivalence.changes import Changes
from to_fsdp2.equivalence.comparison import Comparison, compare
from to_fsdp2.equivalence.coverage import check_coverage
from to_fsdp2.equivalence.record import Record, read_record
from to_fsdp2.equivalence.sides import Place
from to_fsdp2.equivalence.tolerance import Tolerance
from to_fsdp2.equivalence.weighing import weigh

HERE = Path(__file__).parent
LOSS_ONLY = 1e-3
"""A relative difference of losses that people look for by eye; 2e-6 is the tightest that noise allows."""

BASES: dict[str, list[str]] = {
    "standard": ["--wrap", "fsdp1"],
    "data parallel": ["--wrap", "ddp"],
    "per-rank seeds": ["--wrap", "ddp", "--seeds"],
    "bf16": ["--wrap", "fsdp1", "--precision", "bf16", "--accumulation", "1"],
    "bf16 buffers": ["--wrap", "fsdp1", "--precision", "bf16", "--accumulation", "1", "--buffer-dtype"],
    "bf16 accumulated": ["--wrap", "fsdp1", "--precision", "bf16"],
    "fp16 scaler": ["--wrap", "fsdp1", "--precision", "fp16"],
    "compressed": ["--wrap", "ddp", "--compress", "--accumulation", "1"],
    "SGD": ["--wrap", "fsdp1", "--optimizer", "sgd"],
    "no clipping": ["--wrap", "fsdp1", "--clip", "0"],
    "high clip limit": ["--wrap", "fsdp1", "--clip", "100"],
    "groups by dim": ["--wrap", "fsdp1", "--groups", "dim"],
    "dropout": ["--wrap", "fsdp1", "--dropout", "0.1"],
    "checkpointing": ["--wrap", "fsdp1", "--checkpointing"],
    "evaluation": ["--wrap", "fsdp1", "--evaluate"],
    "unused layer": ["--wrap", "ddp", "--unused", "--clip", "0"],
    "tensor hook": ["--wrap", "ddp", "--hook"],
    "frozen": ["--wrap", "fsdp1", "--frozen"],
    "4 ranks": ["--wrap", "fsdp1"],
    "4 ranks data parallel": ["--wrap", "ddp"],
    "hybrid": ["--wrap", "fsdp1", "--hybrid"],
    "aborted window": ["--wrap", "fsdp1", "--clip", "0", "--abort"],
}
WORLDS = {"4 ranks": 4, "4 ranks data parallel": 4, "hybrid": 4}
NOT_CLEAN = ("aborted window",)
"""optimizer.zero_grad() in the middle of a window cannot reach what fully_shard has added up so far."""


@dataclass(frozen=True)
class Fault:
    """A mistake: `found` are checks that must fail, with the first step at which they do (None: the check has no
    step); others may fail as well, but at no earlier step. `loud`: the script itself ends with an error."""

    base: str
    name: str
    found: dict[str, int | None] = field(default_factory=dict)
    loud: bool = False
    own: bool = False
    """Not among the faults that the method was first tried on."""
    saves: bool = True


FAULTS = (
    Fault("per-rank seeds", "broadcast_lost", {"parameters": 0, "loss": 0}),
    Fault("standard", "meta_lost", {"parameters": 0, "loss": 0}),
    Fault("standard", "optimizer_first", {"coverage": 0, "optimizer": 0}, saves=False),
    Fault("standard", "root_first", loud=True),
    Fault("standard", "root_missing", loud=True),
    Fault("standard", "forward_bypassed", loud=True),
    Fault("no clipping", "ignored", {"gradients": 0}),
    Fault("no clipping", "sync_never", {"gradients": 0, "parameters": 0}),
    Fault("standard", "loss_not_divided", {"loss": 0, "gradients": 0, "clipping": 0}),
    Fault("standard", "gradients_summed", {"gradients": 0, "clipping": 0}),
    Fault("standard", "divided_twice", {"gradients": 0, "clipping": 0}),
    Fault("SGD", "gradients_summed", {"gradients": 0}),
    Fault("no clipping", "gradients_summed", {"gradients": 0}),
    Fault("standard", "clip_local", {"clipping": 0}),
    Fault("standard", "clip_part", {"clipping": 0}),
    Fault("standard", "clip_lost", {"clipping": 0}),
    Fault("high clip limit", "clip_lost", {"clipping": 0}),
    Fault("high clip limit", "clip_local", {"clipping": 0}),
    Fault("standard", "groups_lost", {"hyperparameters": 0, "parameters": 0}),
    Fault("standard", "learning_rate", {"hyperparameters": 0, "parameters": 0}),
    Fault("standard", "schedule_lost", {"hyperparameters": 1, "parameters": 1}),
    Fault("standard", "zero_grad_lost", {"gradients": 1}),
    Fault("standard", "same_data", {"loss": 0}),
    Fault("standard", "tie_broken", {"coverage": 0, "gradients": 0}),
    Fault("standard", "epsilon", {"loss": 0, "gradients": 0}),
    Fault("bf16", "reduce_dtype_lost", {"gradients": 0, "communication": 1}),
    Fault("bf16", "precision_lost", {"loss": 0, "communication": 1}),
    Fault("standard", "precision_added", {"loss": 0, "communication": 1}),
    Fault("bf16", "output_dtype", {"loss": 0}),
    Fault("fp16 scaler", "scaler_lost", {"scaler": 0}),
    Fault("fp16 scaler", "unscale_lost", {"clipping": 0}),
    Fault("dropout", "seed_lost", {"loss": 0}),
    Fault("4 ranks", "wrong_mesh", {"gradients": 0}),
    Fault("standard", "saved_shard", {"checkpoints": 4}),
    Fault("standard", "saved_dtensors", {"checkpoints": 4}),
    Fault("standard", "saved_without_buffers", {"checkpoints": 4}),
    Fault("standard", "saved_without_optimizer", {"checkpoints": 4}),
    Fault("standard", "saved_cast", {"checkpoints": 4}),
    Fault("standard", "saved_with_prefix", {"checkpoints": 4}),
    Fault("standard", "root_only", {"communication": 1}),
    Fault("standard", "one_block_missing", {"communication": 1}),
    Fault("standard", "keep_unsharded", {"communication": 1}),
    Fault("standard", "sync_always", {"gradients": 0, "communication": 1}),
    Fault("standard", "sync_root_only", {"gradients": 0, "communication": 1}),
    Fault("standard", "last_backward", {"gradients": 0, "communication": 1}),
    Fault("hybrid", "hybrid_lost", {"gradients": 0, "communication": 1}),
    Fault("checkpointing", "checkpointing_lost", {"memory": 1}),
    Fault("evaluation", "stale_zero_grad", {"gradients": 1}, own=True),
    Fault("aborted window", "sum_not_cleared", {"gradients": 1}, own=True),
    Fault("no clipping", "window_unsynced", {"gradients": 2}, own=True),
    Fault("standard", "ddp_attribute", {"gradients": 0, "communication": 1}, own=True),
    Fault("bf16 buffers", "buffer_dtype_lost", {"buffers": 0}, own=True),
    Fault("standard", "table_lost", {"loss": 0}, own=True),
    Fault("compressed", "compression_lost", {"gradients": 0}, own=True),
    Fault("unused layer", "unused_reduced", {"gradients": 0}, own=True),
    Fault("tensor hook", "hook_lost", {"gradients": 0}, own=True),
    Fault("frozen", "frozen_lost", {"coverage": 0}, own=True),
    Fault("standard", "betas_lost", {"hyperparameters": 0}, own=True),
    Fault("standard", "other_optimizer", {"parameters": 0}, own=True),
    Fault("fp16 scaler", "scale", {"scaler": 0}, own=True),
    Fault("bf16", "policy_on_root_only", loud=True, own=True),
    Fault("evaluation", "data_consumed", {"loss": 1}, own=True),
    Fault("standard", "saved_before_last_step", {"checkpoints": 4}, own=True),
    Fault("standard", "not_saved", {"checkpoints": None}, own=True),
)


@dataclass
class Outcome:
    """What a run with a fault (or a clean one) led to. `loss`: the largest relative difference of a loss."""

    comparison: Comparison | None
    error: str
    loss: float = 0.0
    loss_step: int | None = None

    @property
    def failing(self) -> dict[str, int | None]:
        results = self.comparison.results if self.comparison else {}
        return {name: result.step for name, result in results.items() if result.outcome == "fail"}


def new_side(base: str) -> list[str]:
    return ["--wrap", "fsdp2", *BASES[base][2:]]


def run_all(directory: Path, faults: tuple[Fault, ...] = FAULTS) -> dict[tuple[str, str], Outcome]:
    """Runs the old and the clean new side of every base, and every fault; keyed by (base, fault), "" is clean."""
    clean = [base for base in BASES if base not in NOT_CLEAN]
    jobs = [job(directory, base, "old", BASES[base]) for base in BASES]
    jobs += [job(directory, base, "clean", new_side(base)) for base in clean]
    jobs += [job(directory, f.base, f.name, [*new_side(f.base), "--fault", f.name], f.saves) for f in faults]
    run_jobs(jobs, directory)
    outcomes = {(base, ""): outcome(directory, base, "clean") for base in clean}
    return outcomes | {(f.base, f.name): outcome(directory, f.base, f.name) for f in faults}


def run_jobs(jobs: list[dict], directory: Path) -> None:
    """Runs the jobs of `forked_runs.py`."""
    (directory / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, str(HERE / "forked_runs.py"), str(directory / "jobs.json")]
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)


def job(directory: Path, base: str, name: str, arguments: list[str], saves: bool = True) -> dict:
    record = str(place_of(directory, base, name))
    saved = ["--save", "checkpoint.pt"] if saves else []
    script = str(HERE / "scripts" / "faulty_gpt.py")
    place = {"name": record, "record": record, "folder": record, "script": script}
    return {**place, "world": WORLDS.get(base, 2), "arguments": [*arguments, *saved]}


def place_of(directory: Path, base: str, name: str) -> Path:
    return directory / f"{base} {name}".replace(" ", "-")


def outcome(directory: Path, base: str, name: str) -> Outcome:
    """Compares one run with the old side of its base."""
    return outcome_of((place_of(directory, base, "old"), place_of(directory, base, name)))


def outcome_of(places: tuple[Path, Path]) -> Outcome:
    """Compares two records as `verify` does."""
    for place in places:
        if (place / "failed").exists():
            return Outcome(None, "\n".join(file.read_text() for file in sorted(place.glob("rank*.log"))))
    records = read_record(places[0]), read_record(places[1])
    comparison = compare(*records, Tolerance())
    sides = Place("old", "old", places[0], places[0], places[0]), Place("new", "new", places[1], places[1], places[1])
    comparison.results["coverage"] = check_coverage(sides, records, Changes()).result
    comparison.results["checkpoints"] = compare_checkpoints(places, records)
    expected.apply(comparison, expected.explain(comparison))
    weigh(comparison)
    add_causes(comparison)
    return Outcome(comparison, "", *largest_loss_difference(*records))


def compare_checkpoints(places: tuple[Path, Path], records: tuple[Record, Record]):
    for place, record in zip(places, records, strict=True):
        checkpoints.preserve(record, place / "kept")
    return checkpoints.joined(checkpoints.compare(places[0] / "kept", places[1] / "kept"))


def largest_loss_difference(old: Record, new: Record) -> tuple[float, int | None]:
    largest, first = 0.0, None
    for key, events in sorted(old.losses.items()):
        for rank, event in events.items():
            other = new.losses.get(key, {}).get(rank)
            size = abs(event["value"] - other["value"]) / abs(event["value"]) if other else 1.0
            largest = max(largest, size)
            first = key[0] if first is None and size > 2e-6 else first
    return largest, first


def problems(outcomes: dict[tuple[str, str], Outcome]) -> list[str]:
    """What was not found, found at another step, or found where nothing is wrong."""
    found = [
        f"{base}, clean: {outcome.failing or outcome.error}"
        for (base, name), outcome in outcomes.items()
        if not name and (outcome.failing or outcome.error)
    ]
    for fault in FAULTS:
        outcome = outcomes[fault.base, fault.name]
        failing = outcome.failing
        if fault.loud != bool(outcome.error):
            found.append(f"{fault.base}, {fault.name}: {outcome.error or 'no error'}")
        elif any(failing.get(check, "passes") != step for check, step in fault.found.items()):
            found.append(f"{fault.base}, {fault.name}: {failing} instead of {fault.found}")
        elif any((step or 0) < min(s or 0 for s in fault.found.values()) for step in failing.values()):
            found.append(f"{fault.base}, {fault.name}: {failing} is too early")
    return found


def table(outcomes: dict[tuple[str, str], Outcome]) -> str:
    """The outcomes as a Markdown table."""
    lines = [
        "| setting | fault | caught by (first step) | largest loss difference | loss 2e-6 (step) | loss 1e-3 |",
        "|---|---|---|---|---|---|",
    ]
    for (base, name), outcome in outcomes.items():
        if outcome.error:
            error = next((line.strip() for line in outcome.error.splitlines() if "Error:" in line), "no message")
            lines.append(f"| {base} | {name} | loud: {error[:80]} | | | |")
            continue
        order = sorted(outcome.failing.items(), key=lambda item: -1 if item[1] is None else item[1])
        caught = ", ".join(f"{check} ({'-' if step is None else step})" for check, step in order)
        tight = "no" if outcome.loss_step is None else f"yes ({outcome.loss_step})"
        wide = "yes" if outcome.loss > LOSS_ONLY else "no"
        lines.append(f"| {base} | {name or 'clean'} | {caught or 'nothing'} | {outcome.loss:.1e} | {tight} | {wide} |")
    return "\n".join(lines)


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        outcomes = run_all(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
    print(table(outcomes))
    print("\n".join(problems(outcomes)))


if __name__ == "__main__":
    main()
