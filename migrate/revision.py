"""A workspace as it was at a commit, while its files go on changing."""

from __future__ import annotations

import hashlib

from ..transforms.findings import UserError
from ..transforms.text.generated import is_generated, is_helper_module
from . import git
from .workspace import Workspace


def look_at(workspace: Workspace, revision: str) -> None:
    """Let the files of a workspace be those of a commit. What git does not track there stays as it is, but for helpers.

    Raises UserError where there is no such commit.
    """
    objects = git.files_at(workspace.root, revision)
    if objects is None:
        raise UserError(f"--old {revision}: no such commit in {workspace.root}")
    changed = []
    for label in (*workspace.files, *workspace.notebooks):
        data = workspace.read(label)
        if label in objects and objects[label] != _object(data):
            changed.append(label)
        elif label not in objects and is_helper_module(label) and is_generated(data.decode("utf-8", "replace")):
            workspace.files.remove(label)
    texts = git.contents(workspace.root, [objects[label] for label in changed])
    workspace.given |= dict(zip(changed, texts, strict=True))


def _object(data: bytes) -> str:
    """The name that git gives to a content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
