"""Run a training script under the recorder and read what it wrote."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INJECT = Path(__file__).parents[2] / "equivalence" / "inject"
SCRIPTS = Path(__file__).parent / "scripts"

Event = dict[str, Any]


def launch(
    command: list[str], record: Path | None, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command with the recorder injected, without checking how it ends."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TO_FSDP2_")}
    environment |= {"PYTHONPATH": str(INJECT), "OMP_NUM_THREADS": "1", **variables}
    if record is not None:
        environment["TO_FSDP2_RECORD"] = str(record)
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=150
    )


def torchrun(
    script: str | Path, *arguments: str, record: Path, ranks: int = 2, mode: str = "exact", **variables: str
) -> list[list[Event]]:
    """Run a script of `scripts/` on gloo and return the events of every rank."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(SCRIPTS / script)]
    variables = {"TO_FSDP2_MODE": mode, "TO_FSDP2_RECORD_LEVEL": "full", **variables}
    done = launch([*command, *arguments], record, None, **variables)
    assert done.returncode == 0, _tail(done.stderr)
    return read(record, ranks)


class Forks:
    """One process that has imported torch, of which the ranks of every run are forks: `torchrun` costs three imports a run."""

    def __init__(self) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TO_FSDP2_")}
        command = [sys.executable, str(Path(__file__).parent / "forked_runs.py"), "-"]
        environment["OMP_NUM_THREADS"] = "1"
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def run(self, script: str, *arguments: str, record: Path, ranks: int = 2, **variables: str) -> list[list[Event]]:
        """As `torchrun` does."""
        record.mkdir(parents=True)
        place = {"name": str(record), "record": str(record), "folder": str(record), "script": str(SCRIPTS / script)}
        job = {**place, "world": ranks, "arguments": arguments, "variables": {"TO_FSDP2_TRIPWIRES": "0", **variables}}
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"
        assert not (record / "failed").exists(), "\n".join(log.read_text() for log in sorted(record.glob("*.log")))
        return read(record, ranks)

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def _tail(errors: str) -> str:
    """What the ranks wrote, without the launcher's own report."""
    lines = errors.splitlines()
    return "\n".join([line for line in lines if line.startswith("[rank")][-40:] or lines[-40:])


def read(record: Path, ranks: int) -> list[list[Event]]:
    """The events of ranks 0 to ranks - 1."""
    return [
        [json.loads(line) for line in (record / f"rank{rank}.jsonl").read_text().splitlines()] for rank in range(ranks)
    ]


def select(events: list[Event], name: str, **fields: Any) -> list[Event]:
    """Events of a name whose fields have the given values."""
    return [e for e in events if e["event"] == name and all(e.get(key) == value for key, value in fields.items())]


@dataclass(frozen=True)
class Whole:
    """A tensor put together from the pieces of all ranks: one checksum, and what the replicas say."""

    shape: tuple[int, ...]
    dtype: str
    checksum: int
    replicas: int
    norm: float


def wholes(ranks: list[list[Event]], kind: str, step: int) -> dict[str, Whole]:
    """Merge the pieces of one kind at one step; asserts that they cover each tensor and that replicas agree."""
    pieces: dict[str, dict[str, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for events in ranks:
        for event in select(events, "tensors", kind=kind, step=step):
            for entry in event["entries"]:
                assert "unreadable" not in entry, entry
                if "missing" not in entry and "value" not in entry:
                    name = f"{entry['name']}:{entry['state']}" if "state" in entry else entry["name"]
                    pieces[name][entry["replica"]].append(entry)
    merged = {}
    for name, replicas in pieces.items():
        checksums = set()
        for parts in replicas.values():
            assert sum(part["count"] for part in parts) == math.prod(parts[0]["shape"]), (name, parts)
            checksums.add(sum(int(part["checksum"], 16) for part in parts) % 2**64)
        assert len(checksums) == 1, f"replicas of {name} differ"
        first, *_ = next(iter(replicas.values()))
        norm = math.sqrt(sum(part["sumsq"] for part in next(iter(replicas.values()))))
        merged[name] = Whole(tuple(first["shape"]), first["dtype"], checksums.pop(), len(replicas), norm)
    return merged


def bits(ranks: list[list[Event]]) -> dict[str, Any]:
    """Everything numeric that has to be the same under every wrapper: losses, norms and the checksum of each tensor."""
    first = ranks[0]
    steps = [event["step"] for event in select(first, "step")]
    tensors = {
        (kind, step, name): (whole.shape, whole.dtype, whole.checksum)
        for kind in ("initial", "gradient", "parameter", "optimizer", "buffer")
        for step in steps
        for name, whole in wholes(ranks, kind, step).items()
    }
    losses = [[(e["step"], e["micro"], e["value"]) for e in select(events, "loss")] for events in ranks]
    norms = [(e["step"], e["norm"]) for e in select(first, "clip")]
    return {"steps": steps, "losses": losses, "norms": norms, "tensors": tensors}
