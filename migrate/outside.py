"""What lies next to the named paths: files that the migration may concern but that nobody named."""

from __future__ import annotations

from .imports import Neighbours, imported_modules, package_of
from .workspace import Workspace, open_workspace


def connected_outside(workspace: Workspace, labels: set[str]) -> list[str]:
    """Files of the repository that are not among the workspace's own, but that imports connect to `labels`.

    A model that is wrapped in a named file may well be used in one of these.
    """
    if not labels or not workspace.in_repository or workspace.root in workspace.paths:
        return []
    everything = open_workspace([str(workspace.root)], workspace.exclude)
    own = set(workspace.files)
    imports: dict[str, set[str]] = {}
    for label in own.union(everything.files):
        try:
            imports[label] = imported_modules(everything.read(label), package_of(label))
        except OSError:
            continue
    return sorted(Neighbours(imports).connected(labels) - own)


def note_on(files: list[str]) -> str:
    """One line for the user; empty without files."""
    if not files:
        return ""
    many = f"{len(files):,} files" if len(files) > 1 else "1 file"
    names = ", ".join(files[:3]) + (", …" if len(files) > 3 else "")
    return f"not looked at: {many} outside of the named paths, connected by imports ({names})"
