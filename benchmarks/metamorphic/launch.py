"""Runs a program's stages in a copy of its folder, on a server of ranks, and keeps what it printed and wrote."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from .programs import Run

ROOT = Path(__file__).parents[2]
SECONDS = 300.0
ATTEMPTS = 3
NOTED = "outcome.json"
# A busy machine, not the program: gloo fails to connect its ranks, another process took the port, a thread dies at exit.
OF_A_BUSY_MACHINE = ("connectFullMesh failed", "EADDRINUSE", "terminate called without an active exception")


@dataclass(frozen=True)
class Outcome:
    """What a run left: text printed per stage, the folder it ran in, the folder that `OUT` named.

    `failure` is empty, or says how the run ended and shows the end of what it wrote to stderr. `constructed` are the names of
    the old wrappers that were built.
    """

    printed: tuple[str, ...]
    folder: Path
    out: Path
    failure: str
    constructed: frozenset[str]
    seconds: float


class Ranks:
    """A server of ranks (see `ranks.py`), for one thread at a time; close it, or use it in a `with` statement."""

    def __init__(self, modules: tuple[str, ...] = ()) -> None:
        command = [sys.executable, "-m", f"{__package__}.ranks", *modules]
        # Threads of OpenMP would not survive a fork.
        environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        self._server = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the server."""
        self._server.terminate()
        self._server.communicate()

    def run(self, run: Run, program: Path, work: Path, seconds: float = SECONDS) -> Outcome:
        """Runs all stages of `run` on a copy of `program` in the new folder `work`, each for at most `seconds`."""
        folder, out = work / "program", work / "out"
        shutil.copytree(program, folder, ignore=shutil.ignore_patterns("__pycache__"))
        out.mkdir()
        printed: list[str] = []
        constructed: set[str] = set()
        begun, failure = time.monotonic(), ""
        for args in run.stages:
            logs = work / "logs"
            failure = self._stage(run, args, folder, out, logs, seconds)
            printed.append("".join(path.read_text(errors="replace") for path in sorted(logs.glob("rank*.out"))))
            constructed |= _lines(logs / "constructed")
            if failure:
                break
        return Outcome(tuple(printed), folder, out, failure, frozenset(constructed), time.monotonic() - begun)

    def _stage(self, run: Run, args: tuple[str, ...], folder: Path, out: Path, logs: Path, seconds: float) -> str:
        failure = ""
        with tempfile.TemporaryDirectory(dir=folder.parent) as saved:
            for path in (folder, out):
                shutil.copytree(path, Path(saved) / path.name)
            for attempt in range(ATTEMPTS):
                if attempt:
                    for path in (folder, out):
                        shutil.rmtree(path)
                        shutil.copytree(Path(saved) / path.name, path)
                shutil.rmtree(logs, ignore_errors=True)
                logs.mkdir()
                failure = self._launch(run, args, folder, out, logs, seconds)
                if not any(symptom in failure for symptom in OF_A_BUSY_MACHINE):
                    break
        return failure

    def _launch(self, run: Run, args: tuple[str, ...], folder: Path, out: Path, logs: Path, seconds: float) -> str:
        assert self._server.stdin and self._server.stdout
        job = {
            "folder": str(folder), "script": run.script, "args": args, "nproc": run.nproc if run.launcher == "torchrun" else 0,
            "env": dict(run.environment) | {"OUT": str(out)}, "logs": str(logs), "seconds": seconds,
        }  # fmt: skip
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        if not answer["late"] and not any(answer["codes"]):
            return ""
        ended = f"ran for {answer['seconds']:.0f} s, or stood still" if answer["late"] else f"exit codes {answer['codes']}"
        errors = "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(logs.glob("rank*.err")))
        return f"{ended}\n{errors}"


class Outcomes:
    """Outcomes of runs, kept in a folder; failures are not. The key is all that an outcome depends on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def of(self, ranks: Ranks, run: Run, program: Path) -> Outcome:
        """The outcome of a run from the folder, or run now and put there."""
        key = hashlib.sha256(repr((run, sys.version, version("torch"))).encode())
        files = {path.relative_to(program).as_posix(): path for path in program.rglob("*") if path.is_file()}
        for name, path in (*sorted(files.items()), ("ranks.py", Path(__file__).with_name("ranks.py"))):
            if "__pycache__" not in path.parts:
                key.update(f"{name} {path.stat().st_size} ".encode() + path.read_bytes())
        work = self._folder / key.hexdigest()[:24]
        with self._locks[work.name]:
            return _read(work) if (work / NOTED).exists() else _made(ranks, run, program, work)


def _made(ranks: Ranks, run: Run, program: Path, work: Path) -> Outcome:
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    outcome = ranks.run(run, program, work)
    if not outcome.failure:
        facts = {"printed": outcome.printed, "constructed": sorted(outcome.constructed), "seconds": outcome.seconds}
        (work / NOTED).write_text(json.dumps(facts))
    return outcome


def _read(work: Path) -> Outcome:
    facts = json.loads((work / NOTED).read_text())
    return Outcome(
        tuple(facts["printed"]), work / "program", work / "out", "", frozenset(facts["constructed"]), facts["seconds"]
    )


def _lines(path: Path) -> set[str]:
    return set(path.read_text().split()) if path.exists() else set()
