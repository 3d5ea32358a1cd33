"""git repositories to try things on."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git(folder: Path, *arguments: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run git; the caller looks at the exit code."""
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "core.autocrlf=false"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, input=stdin, capture_output=True, check=False)


def commit_all(folder: Path) -> None:
    """Make `folder` a repository with one commit of all its files, ignored ones too."""
    assert git(folder, "init", "-q").returncode == 0
    assert git(folder, "add", "-A", "-f").returncode == 0
    assert git(folder, "commit", "-q", "-m", "start").returncode == 0
