"""`to-fsdp2 trace`: runs a program once and writes down what of it the text does not show."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from . import git
from .command import check_options
from .devices import choose_device
from .failures import failure_of, log_tail
from .launch import Launch, end_by_signal, launcher_command, needs_of, run
from .observations import join_ranks
from .options import UsageError, VerifyOptions
from .record import Record, read_record
from .session import SEED
from .sides import Place, open_working_tree
from .terminal import Progress
from .workspace import open_workspace

SCHEMA = 3


def trace(options: VerifyOptions, output: Path) -> int:
    """Runs the program of `options` in a copy of the working directory and writes `output`.

    Returns 0, or 2 where the program failed or made nothing of what is looked for; what was seen until then is written
    all the same. Raises UsageError for a request that makes no sense.
    """
    check_options(options)
    if output.exists() and not _is_trace(output):
        raise UsageError(f"--output {output}: is there, and is no trace; it is left as it is")
    end_by_signal()
    with open_workspace() as workspace, open_working_tree(options, workspace) as place:
        record, failure = _run(options, place, workspace)
        document = _document(options, place, record)
    if document["wraps"] or document["optimizers"]:
        output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for line in summary(document):
        print(line)
    if failure is not None:
        print(f"the run failed: {failure}", file=sys.stderr)
    if not document["wraps"]:
        print("no model was wrapped by the repository's own code: there is nothing to learn from this run", file=sys.stderr)
    return 2 if failure is not None or not document["wraps"] else 0


def _run(options: VerifyOptions, place: Place, workspace: Path) -> tuple[Record, str | None]:
    needs = needs_of(options.command, place)
    device = choose_device(options, needs.cuda)
    logs = workspace / "logs"
    observe = {"TO_FSDP2_OBSERVE": "1", "TO_FSDP2_RECORD_LEVEL": "loss", "TO_FSDP2_SEED": SEED}
    started = Launch(
        "traced", launcher_command(options, place, needs, logs, []), place, workspace / "record", logs,
        {**device.environment, **observe},
    )  # fmt: skip
    progress = Progress()
    progress.start("traced run")
    finished = run(started, options.timeout, workspace / "tmp", progress.step)
    record = read_record(started.record)
    failure = failure_of(finished, started, record, options.timeout)
    progress.end(failure or f"{record.step_count} steps on {record.world} ranks")
    if failure is not None:
        sys.stderr.write(log_tail(started) + "\n")
    return record, failure


def _document(options: VerifyOptions, place: Place, record: Record) -> dict[str, Any]:
    here = Path.cwd().resolve()
    original = Path(os.path.relpath(place.original, git.toplevel(here) or here))
    observed = {rank: events[-1] for rank, events in record.observed.items()}
    start = next(iter(record.starts.values()), {})
    return {
        "tool": "to-fsdp2", "schema": SCHEMA, "kind": "trace", "command": options.command, "torch": start.get("torch"),
        "ranks": record.world, "steps": record.step_count,
        **join_ranks(observed, lambda name: (original / name).as_posix(), lambda name: _hash(place.top / name)),
    }  # fmt: skip


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _is_trace(path: Path) -> bool:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get("tool") == "to-fsdp2" and document.get("kind") == "trace"


def summary(document: dict[str, Any]) -> list[str]:
    """Wraps and optimizers in the order in which they were made, a line each."""
    lines = []
    for entry in document["order"]:
        kind, number = entry.split()
        made = document["wraps" if kind == "wrap" else "optimizers"][int(number)]
        place = made["places"][0] if made["places"] else "elsewhere"
        if kind == "optimizer":
            lines.append(f"{place} {made['class']} over {made['parameters']} parameters")
            continue
        units = "".join(f", {count} {name}" for name, count in made["units"].items())
        lines.append(f"{place} {made['wrapper']} around {made['module']}{f' with{units[1:]}' if units else ''}")
        if made["without_gradient"]:
            some = ", ".join(made["without_gradient"][:5])
            more = len(made["without_gradient"]) - 5
            lines.append(f"  never had a gradient: {some}{f' and {more} more' if more > 0 else ''}")
    return lines
