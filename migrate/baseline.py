"""Findings that a project knows of: a file of them, so that only new ones fail."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..transforms.findings import Finding, UserError

_HEAD = {"tool": "to-fsdp2", "schema": 1, "kind": "baseline"}


@dataclass(frozen=True)
class Known:
    """One finding of a baseline. ``file`` is relative to the folder of the baseline."""

    rule: str
    file: str
    fingerprint: str


def known(findings: Iterable[Finding], names: Iterable[str], folder: Path) -> list[Known]:
    """Findings, whose files are relative to the working directory, as a baseline in a folder has them."""
    return [Known(f.rule, _relative(f.file, folder), name) for f, name in zip(findings, names, strict=True)]


def render(entries: Iterable[Known]) -> bytes:
    """The file, in an order that makes small differences."""
    listed = [vars(entry) for entry in sorted(entries, key=lambda e: (e.file, e.rule, e.fingerprint))]
    return (json.dumps({**_HEAD, "findings": listed}, indent=1) + "\n").encode()


def read(file: Path) -> Counter[Known]:
    """The entries of a baseline. Raises UserError for what is none."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        head = {key: document.get(key) for key in _HEAD}
        entries = Counter(Known(e["rule"], e["file"], e["fingerprint"]) for e in document["findings"])
    except FileNotFoundError as error:
        raise UserError(f"--baseline {file}: there is no such file; --write-baseline makes it") from error
    except OSError as error:
        raise UserError(f"--baseline {file}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"--baseline {file}: is no baseline of to-fsdp2") from error
    if head != _HEAD:
        raise UserError(f"--baseline {file}: is no baseline of this version; --write-baseline makes a new one")
    return entries


def split(entries: Sequence[Known], baseline: Counter[Known]) -> tuple[list[bool], int]:
    """For each finding whether it is new, and how many entries of the baseline are gone."""
    left = Counter(baseline)
    new = []
    for entry in entries:
        new.append(left[entry] <= 0)
        left[entry] -= not new[-1]
    return new, sum(left.values())


def _relative(file: str, folder: Path) -> str:
    return Path(os.path.relpath(Path.cwd() / file, folder)).as_posix()
