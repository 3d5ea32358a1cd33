"""PYTHONPATH for a side: every entry that leads into the repository leads into the side's copy of it.

A repository installed with `pip install -e` is imported from where it was installed, so an old side would run the
new code. Such installs come as lines of .pth files or as finders with a mapping; both can be read, and a directory
on PYTHONPATH goes before either.
"""

from __future__ import annotations

import ast
import os
import re
import site
import sys
from pathlib import Path

from .sides import Place

MAPPING = re.compile(r"^MAPPING\b[^=]*=\s*(\{.*\})\s*$", re.MULTILINE)


def python_path(place: Place) -> list[str]:
    """The entries of PYTHONPATH, the caller's own first."""
    own = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    editable = [str(path) for path in editable_directories() if any(path.is_relative_to(top) for top in _originals(place))]
    entries = dict.fromkeys(_moved(entry, place) for entry in (*own, *editable))
    return list(entries)


def _moved(entry: str, place: Place) -> str:
    # A relative entry is relative to the directory the script runs in, which is the side's own already.
    if not os.path.isabs(entry):
        return entry
    path = Path(entry).resolve()
    for original in _originals(place):
        if path.is_relative_to(original):
            own = place.top / path.relative_to(original)
            if original == place.original or own.exists():
                return str(own)
    return entry


def _originals(place: Place) -> list[Path]:
    """What may be meant by the repository: of two folders that are compared, the environment names only one."""
    known = dict.fromkeys((place.original, place.sibling or place.original))
    return sorted(known, key=lambda path: -len(path.parts))


def editable_directories() -> list[Path]:
    """Directories that hold the packages of editable installs of this interpreter."""
    found: dict[Path, None] = {}
    for directory in {*site.getsitepackages(), site.getusersitepackages(), *_site_directories()}:
        for file in Path(directory).glob("*.pth"):
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                if os.path.isabs(line) and os.path.isdir(line):
                    found[Path(line).resolve()] = None
        for file in Path(directory).glob("__editable___*_finder.py"):
            for mapped in _mapped(file.read_text(encoding="utf-8", errors="replace")):
                found[Path(mapped).resolve().parent] = None
    return list(found)


def _site_directories() -> list[str]:
    return [entry for entry in sys.path if entry.endswith("-packages")]


def _mapped(source: str) -> list[str]:
    match = MAPPING.search(source)
    if match is None:
        return []
    # setuptools writes the mapping as a literal of one line.
    try:
        mapping = ast.literal_eval(match.group(1))
    except (SyntaxError, ValueError):
        return []
    # Elsewhere than below a directory of its own name, a package cannot be found through PYTHONPATH.
    return [path for name, path in mapping.items() if Path(path).name == name]
