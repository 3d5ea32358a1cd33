"""The old side's run, kept so that it is made once: `verify --save-reference`, and later `verify --reference`.

A reference is the record of the run and the checkpoints that it saved. It holds for the code, the command and the settings that
it was made with, and is refused with any others. The old side's code is still looked up, to tell what has changed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .changes import ChangedFile, Changes
from .checkpoint_store import INDEX
from .options import UsageError
from .record import Record, read_record
from .session import Session
from .sides import Place
from .verdict import Run
from .working_files import walk

_FILE = "reference.json"
_HEAD = {"tool": "to-fsdp2", "schema": 1, "kind": "reference"}


def save(session: Session, directory: Path) -> Run:
    """Runs the old side and keeps what it did in a directory, which is replaced if it is a reference. Raises UsageError."""
    if directory.exists() and (not directory.is_dir() or (any(directory.iterdir()) and not (directory / _FILE).is_file())):
        raise UsageError(f"--save-reference {directory}: is there and is no reference; name another directory")
    place = session.places["old"]
    # Nobody knows yet which of its lines will have changed.
    python = [name for name in walk(place.top) if name.endswith(".py")]
    everything = Changes([ChangedFile(name, place.top / name, None) for name in python])
    settings = _settings(session)
    session = replace(session, changes=everything)
    run, _ = session.run("old", "old")
    if run.failure is None and run.steps:
        session.keep_checkpoints("old")
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for part in _parts(session):
            if part.exists():
                shutil.copytree(part, directory / part.parent.name)
        document = {**_HEAD, "settings": settings, "top": str(place.top), "run": asdict(run)}
        (directory / _FILE).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return run


def load(session: Session, directory: Path) -> tuple[Run, Record]:
    """The run of a reference, as if it had just been made. Raises UsageError where it is another one's."""
    try:
        document = json.loads((directory / _FILE).read_text(encoding="utf-8"))
        saved, top, run = document["settings"], document["top"], Run(**document["run"])
        fits = {key: document.get(key) for key in _HEAD} == _HEAD
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--reference {directory}: is no reference; `verify --save-reference` makes one") from error
    if not fits:
        raise UsageError(f"--reference {directory}: was made by another version of to-fsdp2")
    other = [name for name, value in _settings(session).items() if saved.get(name) != value]
    if other:
        raise UsageError(f"--reference {directory}: was made with another {', another '.join(other)}; make it again")
    place = session.places["old"]
    for part in _parts(session):
        shutil.rmtree(part, ignore_errors=True)
        if (directory / part.parent.name).is_dir():
            shutil.copytree(directory / part.parent.name, part)
    records, kept = _parts(session)
    for file in (*records.glob("*.jsonl"), kept / INDEX):
        if file.is_file():
            _move(file, top, str(place.top))
    run.root = str(place.root)
    record = read_record(records)
    session.runs["old"] = run, record
    session.progress.start("old run")
    session.progress.end(f"{record.step_count} steps on {record.world} ranks, from the reference")
    return run, record


def _parts(session: Session) -> tuple[Path, Path]:
    return session.keep / "records" / "old", session.kept_checkpoints("old")


def _settings(session: Session) -> dict[str, Any]:
    """What a run depends on beside the machine."""
    options = session.options
    return {
        "code": _digest(session.places["old"]),
        "command": options.command,
        "number of ranks": options.nproc,
        "launcher": options.launcher,
        "device": session.device.name,
        "mode": session.device.mode,
        "record level": options.record,
        "torch": version("torch"),
    }


def _digest(place: Place) -> str:
    """Of the Python files of a side."""
    digest = hashlib.sha256()
    for name in sorted(name for name in walk(place.top) if name.endswith(".py")):
        data = (place.top / name).read_bytes() if (place.top / name).is_file() else b""
        digest.update(f"{name}\0{len(data)}\0".encode("utf-8", "surrogateescape") + data)
    return digest.hexdigest()


def _move(file: Path, old: str, new: str) -> None:
    """Let paths in a file of JSON lead into another directory."""
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(json.dumps(old)[1:-1], json.dumps(new)[1:-1]), encoding="utf-8")
