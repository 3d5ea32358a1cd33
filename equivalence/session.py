"""The runs of one verification: each is started, watched, read, and what it saved is kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from . import checkpoints, launch
from .changes import Changes
from .devices import Device
from .failures import failure_of, log_tail
from .options import VerifyOptions
from .record import Record, read_record
from .script_needs import Needs
from .sides import Place
from .terminal import Progress
from .verdict import Run, Side

SEED = "0"
"""For scripts that do not seed themselves; a script that does overrides it."""


@dataclass
class Session:
    """What all runs have in common. `keep` is where records, logs and checkpoints go."""

    options: VerifyOptions
    places: dict[Side, Place]
    needs: dict[Side, Needs]
    changes: Changes
    device: Device
    keep: Path
    temporary: Path
    progress: Progress
    runs: dict[str, tuple[Run, Record]] = field(default_factory=dict)
    prepare: Callable[[Place], None] = lambda place: None
    """What is done to every further copy of the new side before it runs."""

    def again(
        self, options: VerifyOptions, new: Place, changes: Changes, keep: Path, prepare: Callable[[Place], None]
    ) -> Session:
        """A session with another new side, in which what the old side did is known."""
        runs = {name: known for name, known in self.runs.items() if known[0].side == "old" and "-from-" not in name}
        for name in runs:
            kept = keep / "checkpoints" / name
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.symlink_to(self.kept_checkpoints(name))
        needs = {**self.needs, "new": launch.needs_of(options.command, new)}
        places = {**self.places, "new": new}
        return replace(self, options=options, places=places, needs=needs, changes=changes, keep=keep, runs=runs, prepare=prepare)

    def run(
        self, side: Side, name: str, extra: list[str] | None = None, environment: dict[str, str] | None = None
    ) -> tuple[Run, Record]:
        """Runs the script of a side, with arguments added to its command, under a name for its record and logs."""
        place, needs = self.places[side], self.needs[side]
        logs, record_directory = self.keep / "logs" / name, self.keep / "records" / name
        for directory in (logs, record_directory):
            if self.options.nnodes == "1" and directory.exists():
                shutil.rmtree(directory)
        started = launch.Launch(
            name=name,
            command=launch.launcher_command(self.options, place, needs, logs, extra or []),
            place=place,
            record=record_directory,
            logs=logs,
            environment={**self._environment(side), **(environment or {})},
        )
        self.progress.start(f"{name} run")
        finished = launch.run(started, self.options.timeout, self.temporary, self.progress.step)
        record = read_record(record_directory)
        failure = failure_of(finished, started, record, self.options.timeout)
        self.progress.end(failure or f"{record.step_count} steps on {record.world} ranks")
        run = Run(
            side=side, origin=place.origin, root=str(place.root), command=started.command, ranks=record.world,
            exit_code=finished.exit_code, seconds=finished.seconds, steps=record.step_count, failure=failure,
            log=log_tail(started) if failure else "", environment=started.environment, warnings=record.warnings,
        )  # fmt: skip
        self.runs[name] = run, record
        return run, record

    def holds_rank_0(self, side: Side) -> bool:
        """Whether rank 0 ran on this machine: every machine has temporary directories of its own."""
        start = self.runs[side][1].starts.get(0, {})
        return self.options.nnodes == "1" or start.get("root") == str(self.places[side].top)

    def kept_checkpoints(self, name: str) -> Path:
        """Where the checkpoints of a run are kept."""
        return self.keep / "checkpoints" / name

    def keep_checkpoints(self, name: str) -> None:
        """Copies what a run saved, before another run can overwrite it."""
        directory = self.kept_checkpoints(name)
        if directory.exists():
            shutil.rmtree(directory)
        checkpoints.preserve(self.runs[name][1], directory)

    def _environment(self, side: Side) -> dict[str, str]:
        return {
            **self.device.environment,
            "TO_FSDP2_RECORD_LEVEL": self.options.record,
            "TO_FSDP2_SEED": SEED,
            "TO_FSDP2_TRIPWIRES": "1" if side == "new" else "0",
            "TO_FSDP2_TRACE": json.dumps([str(path) for path in self.changes.paths(side)]),
        }
