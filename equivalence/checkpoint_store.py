"""Keeping what a run saved, before the other run can overwrite it.

Scripts save to absolute paths, or over and over to the same one. Without a copy taken right after each run,
the old side's file could be the new side's, and a comparison of the two would pass whatever happened.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .record import Record

INDEX = "checkpoints.json"
_COMPANION_BYTES = 1 << 20
_UNFINISHED = (".tmp", ".temp", ".part", ".partial", ".incomplete")


@dataclass
class SavedFile:
    """A checkpoint file or directory: its name as the script wrote it, relative to the script's own root if
    it lies there; the path of the copy (None: it was gone when the run ended); rank and optimizer step of
    the last save; how often it was saved; further ranks that wrote to the same file."""

    name: str
    original: str
    copy: str | None
    rank: int
    step: int
    saves: int = 1
    others: list[int] = field(default_factory=list)


@dataclass
class SavedRun:
    """All checkpoints of a run, and what is needed to name their contents.

    orders: for each optimizer its parameter names, group by group. aliases: groups of names of one tied
    parameter. buffers: canonical names of buffers. in_memory: how many saves went to a buffer, not to a
    file. companions: what else the run wrote beside its checkpoints (a file that names the latest one,
    say): name → copy.
    """

    files: list[SavedFile] = field(default_factory=list)
    orders: list[list[list[str]]] = field(default_factory=list)
    aliases: list[list[str]] = field(default_factory=list)
    buffers: list[str] = field(default_factory=list)
    companions: dict[str, str] = field(default_factory=dict)
    in_memory: int = 0

    @staticmethod
    def load(keep: Path) -> SavedRun:
        """Reads what `preserve` wrote into `keep`."""
        stored = json.loads((keep / INDEX).read_text())
        stored["files"] = [SavedFile(**entry) for entry in stored["files"]]
        for entry in stored["files"]:
            entry.copy = str(keep / entry.copy) if entry.copy else None
        stored["companions"] = {name: str(keep / copy) for name, copy in stored["companions"].items()}
        return SavedRun(**stored)

    def last(self) -> SavedFile | None:
        """The checkpoint that was saved last, by optimizer step; of one step the one saved last."""
        kept = [file for file in self.files if file.copy is not None]
        return max(enumerate(kept), key=lambda item: (item[1].step, -item[1].rank, item[0]))[1] if kept else None


def preserve(record: Record, keep: Path) -> SavedRun:
    """Copies every checkpoint that a run saved into `keep`, with an index; call it right after the run."""
    run = SavedRun()
    roots: list[Path] = []
    for rank in sorted(record.starts):
        roots += [Path(record.starts[rank][key]) for key in ("root", "cwd") if record.starts[rank].get(key)]
    roots = list(dict.fromkeys(roots))
    for rank, events in sorted(record.checkpoints.items()):
        for event in events:
            _take(run, rank, event, roots)
    orders = {
        event["optimizer"]: [group["names"] for group in event["groups"]] for event in record.optimizers.get(0, [])
    }
    aliases = [event.get("aliases", {}) for event in record.optimizers.get(0, [])]
    run.aliases = [[name, *others] for entry in aliases[-1:] for name, others in entry.items()]
    run.buffers = sorted({key.name for step in record.tensors.values() for key in step if key.kind == "buffer"})
    run.orders = [orders[index] for index in sorted(orders)]
    keep.mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(run.files):
        file.copy = _copied(Path(file.original), keep, number)
    for number, (name, path) in enumerate(_companions(run.files, roots, _began(record))):
        shutil.copy2(path, keep / f"beside-{number}")
        run.companions[name] = f"beside-{number}"
    (keep / INDEX).write_text(json.dumps(asdict(run), indent=1))
    return SavedRun.load(keep)


def _began(record: Record) -> float:
    return min((start.get("time", 0.0) for start in record.starts.values()), default=0.0)


def _take(run: SavedRun, rank: int, event: dict[str, Any], roots: list[Path]) -> None:
    action, path = event["action"], event["path"]
    if action == "rename":
        for file in run.files:
            if file.original == path or file.original.startswith(f"{path}/"):
                file.original = event["to"] + file.original[len(path) :]
                file.name = _relative(Path(file.original), roots)
        _merge_renamed(run)
    elif action == "save" and path is None:
        run.in_memory += 1
    elif action == "save":
        known = next((file for file in run.files if file.original == path), None)
        if known is None:
            run.files.append(SavedFile(_relative(Path(path), roots), path, None, rank, event["step"]))
        elif known.rank == rank:
            known.step, known.saves = event["step"], known.saves + 1
        elif event["kind"] != "dcp" and rank not in known.others:
            known.others.append(rank)


def _merge_renamed(run: SavedRun) -> None:
    """A file that is saved under a temporary name and renamed each time is one file."""
    by_path: dict[str, SavedFile] = {}
    for file in run.files:
        earlier = by_path.get(file.original)
        if earlier is not None:
            file.saves += earlier.saves
        by_path[file.original] = file
    run.files = list(by_path.values())


def _relative(path: Path, roots: list[Path]) -> str:
    for root in roots:
        if path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return path.as_posix()


def _companions(files: list[SavedFile], roots: list[Path], started: float) -> list[tuple[str, Path]]:
    """Small files that were written since the run began, in the directories that hold its checkpoints."""
    saved = {Path(file.original) for file in files}
    directories = dict.fromkeys(path.parent for path in saved if any(path.is_relative_to(root) for root in roots))
    return [
        (_relative(path, roots), path)
        for directory in directories
        if directory.is_dir()
        for path in sorted(directory.iterdir())
        if path.is_file() and path not in saved
        if path.stat().st_mtime >= started and path.stat().st_size <= _COMPANION_BYTES
    ]


def restore(run: SavedRun, top: Path, instead_of: SavedRun | None = None) -> Path | None:
    """Puts what a run saved to the same places below `top`, and removes what `instead_of` saved there.

    Returns the path of the checkpoint that was saved last, None if there is none. What lay outside the
    run's own root goes back to where it lay. Scripts that look for the latest by its time find it: what was
    written first is put back first, and the clock has moved before what follows.
    """
    for file in instead_of.files if instead_of else []:
        _remove(top / file.name)
    for name in instead_of.companions if instead_of else {}:
        _remove(top / name)
    copies = {file.name: Path(file.copy) for file in run.files if file.copy is not None}
    copies |= {name: Path(copy) for name, copy in run.companions.items()}
    for name, copy in sorted(copies.items(), key=lambda item: item[1].stat().st_mtime_ns):
        target = top / name
        _remove(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        if copy.is_dir():
            shutil.copytree(copy, target)
        else:
            shutil.copy2(copy, target)
        _let_time_pass(target)
    last = run.last()
    return top / last.name if last else None


def _let_time_pass(path: Path) -> None:
    """Waits until what is created now is younger than `path`: clocks of file systems move by milliseconds."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        probe = Path(folder) / "probe"
        while True:
            probe.touch()
            if probe.stat().st_ctime_ns > path.stat().st_ctime_ns:
                return
            time.sleep(0.001)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _copied(path: Path, keep: Path, number: int) -> str | None:
    """Copies a file or directory to `keep/number-name`; a name for unfinished files is tried without its
    ending."""
    for candidate in [path, path.with_suffix("")] if path.suffix in _UNFINISHED else [path]:
        target = f"{number}-{candidate.name}"
        if candidate.is_dir():
            shutil.copytree(candidate, keep / target, dirs_exist_ok=True)
            return target
        if candidate.is_file():
            shutil.copy2(candidate, keep / target)
            return target
    return None
