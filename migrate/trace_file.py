"""Reads what `to-fsdp2 trace` wrote, as far as the files are still those that were traced."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..transforms.findings import UserError
from ..transforms.queries.trace import Defined, Entered, Expression, Held, ObservedWrap, Trace
from .workspace import Workspace

SCHEMA = 3
_HELD = ("instance", "class", "function", "returned_by")


@dataclass(frozen=True)
class TraceFile:
    """A trace, with what is to be said about it."""

    trace: Trace
    notes: list[str] = field(default_factory=list)


def read_trace(path: Path, workspace: Workspace) -> TraceFile:
    """The trace in a file. Raises UserError for what is none; facts of files that have changed since are left out."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--trace {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"--trace {path}: is no JSON ({error})") from error
    if not isinstance(document, dict) or document.get("kind") != "trace" or document.get("schema") != SCHEMA:
        raise UserError(f"--trace {path}: was not written by `to-fsdp2 trace` of this version")
    try:
        return _Reader(path, document, workspace).read()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"--trace {path}: is damaged ({type(error).__name__}: {error})") from error


class _Reader:
    def __init__(self, path: Path, document: dict[str, Any], workspace: Workspace) -> None:
        self.path = path
        self.document = document
        self.workspace = workspace
        self.base = workspace.root if workspace.in_repository else Path.cwd()
        self.fresh: dict[str, str] = {}
        """The labels of files that are as they were, by their names in the trace."""

    def read(self) -> TraceFile:
        stale = []
        known = set(self.workspace.files)
        for name, entry in self.document["files"].items():
            label = Path(os.path.relpath(self.base / name, self.workspace.root)).as_posix()
            if label not in known:
                continue
            if hashlib.sha256(self.workspace.read(label)).hexdigest() == entry["sha256"]:
                self.fresh[name] = label
            else:
                stale.append(label)
        lines, some = self._lines()
        wraps = [self._wrap(entry) for entry in self.document["wraps"]]
        trace = Trace(
            self._calls(), self._values(), tuple(self._passed()), self._owners(wraps),
            tuple(wrap for wrap in wraps if wrap is not None), lines, some,
        )  # fmt: skip
        notes = [
            f"{self.workspace.display(label)} has changed since {self.path} was written: what was seen there is not used"
            for label in stale
        ]
        if not self.fresh:
            notes.append(f"{self.path}: none of its files is here as it was, so nothing of it is used")
        return TraceFile(trace, notes)

    def _lines(self) -> tuple[dict[str, frozenset[int]], dict[str, frozenset[int]]]:
        lines: dict[str, frozenset[int]] = {}
        some: dict[str, frozenset[int]] = {}
        for name, label in self.fresh.items():
            entry = self.document["files"][name]
            parted = {line for text in entry.get("lines_of_some_ranks", {}).values() for line in _numbers(text)}
            lines[label] = frozenset(_numbers(entry["lines"])) | parted
            some[label] = frozenset(parted)
        return lines, some

    def _calls(self) -> dict[tuple[str, int, int], tuple[Entered, ...]]:
        calls = {}
        for entry in self._of_fresh(self.document["calls"]):
            entered = [self._entered(one) for one in entry["called"]]
            if None not in entered:
                calls[self.fresh[entry["file"]], entry["end_line"], entry["end_column"]] = tuple(entered)
        return calls

    def _entered(self, entry: dict[str, Any]) -> Entered | None:
        function, receiver = self._defined(entry), entry.get("receiver")
        if function is None:
            return None
        if receiver is None:
            return Entered(function)
        cls = self._defined(receiver)
        return None if cls is None else Entered(function, cls, receiver["is_class"])

    def _values(self) -> dict[Expression, tuple[Held, ...]]:
        values = {}
        for entry in self._of_fresh(self.document["values"]):
            values[self._expression(entry)] = tuple(self._held(one) for one in entry["held"])
        return values

    def _held(self, entry: dict[str, Any]) -> Held:
        if "none" in entry:
            return Held("none")
        kind = next((kind for kind in _HELD if kind in entry), None)
        defined = self._defined(entry[kind]) if kind is not None else None
        return Held("other") if kind is None or defined is None else Held(kind, defined)

    def _passed(self) -> Iterator[tuple[Expression, Defined, str]]:
        for entry in self._of_fresh(self.document["passed"]):
            function = self._defined(entry["to"])
            if function is not None:
                yield self._expression(entry), function, entry["to"]["parameter"]

    def _wrap(self, entry: dict[str, Any]) -> ObservedWrap | None:
        """A wrapped model; None where it was made in a file that has changed, or is none of these."""
        name, _, line = entry["places"][0].rpartition(":") if entry["places"] else ("", "", "0")
        if name not in self.fresh:
            return None
        return ObservedWrap(entry["wrapper"], self.fresh[name], int(line), entry["arguments"], tuple(entry["dtypes"]),
                            entry["scalars"], entry["left_out"], entry["module"], entry["always_used"])  # fmt: skip

    def _owners(self, wraps: list[ObservedWrap | None]) -> dict[Expression, tuple[ObservedWrap, ...]]:
        owners = {}
        for entry in self._of_fresh(self.document["owners"]):
            held = [wraps[one["wrap"]] if "wrap" in one else None for one in entry["held"]]
            if None not in held:
                owners[self._expression(entry)] = tuple(wrap for wrap in held if wrap is not None)
        return owners

    def _of_fresh(self, entries: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return (entry for entry in entries if entry["file"] in self.fresh)

    def _expression(self, entry: dict[str, Any]) -> Expression:
        return Expression(self.fresh[entry["file"]], entry["line"], entry["column"], entry["expression"])

    def _defined(self, entry: dict[str, Any]) -> Defined | None:
        label = self.fresh.get(entry["file"])
        return None if label is None else Defined(label, entry["name"], entry.get("line", 0))


def _numbers(text: str) -> Iterator[int]:
    """``1-3, 7`` as 1, 2, 3, 7."""
    for part in filter(None, text.split(", ")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
