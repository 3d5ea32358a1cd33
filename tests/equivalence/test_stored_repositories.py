"""Repositories that git stores in other ways: without some objects, or with an index in two files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from to_fsdp2.equivalence.options import UsageError, VerifyOptions
from to_fsdp2.equivalence.sides import open_sides


def git(at: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    finished = subprocess.run(["git", *identity, *arguments], cwd=at, check=True, capture_output=True, text=True)
    return finished.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with two commits."""
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    for text in ("old\n", "new\n"):
        (root / "train.py").write_text(text)
        git(root, "add", ".")
        git(root, "commit", "-q", "-m", text)
    return root


def clone_without(repository: Path, filtered: str) -> Path:
    """A clone that was told to leave objects out, and whose remote is gone."""
    clone = repository.parent / "clone"
    git(repository, "config", "uploadpack.allowFilter", "true")
    git(repository, "config", "uploadpack.allowAnySHA1InWant", "true")
    git(repository.parent, "clone", "-q", f"--filter={filtered}", repository.as_uri(), str(clone))
    repository.rename(repository.parent / "gone")
    return clone


@pytest.mark.parametrize("filtered", ["blob:none", "tree:0"])
def test_a_clone_without_the_files_of_a_commit(
    repository: Path, filtered: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = clone_without(repository, filtered)
    monkeypatch.chdir(clone)
    commit = git(clone, "rev-parse", "--short=12", "HEAD~1").strip()
    with pytest.raises(UsageError) as raised, open_sides(VerifyOptions(old="HEAD~1", new="HEAD"), tmp_path / "work"):
        pass
    message = str(raised.value)
    assert message.startswith(f"this clone does not hold all files of {commit}: fetch them")
    assert "\n" not in message
    assert len(message) < 200
    assert len(git(clone, "worktree", "list").splitlines()) == 1
    assert not (clone / ".git" / "worktrees").exists()


def test_files_that_are_there_are_enough(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(clone_without(repository, "blob:none"))
    with open_sides(VerifyOptions(), tmp_path / "work") as (old, new):
        assert (old.root / "train.py").read_text() == (new.root / "train.py").read_text() == "new\n"


def test_a_worktree_that_git_cannot_remove_is_taken_off_the_list(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    with open_sides(VerifyOptions(old="HEAD~1", new="HEAD"), tmp_path / "work") as (old, _):
        (old.root / ".git").write_text("gitdir: elsewhere\n")
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert not old.root.exists()


def test_an_index_in_two_files(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "settings"
    settings.write_text("[core]\nsplitIndex = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.chdir(repository)
    git(repository, "update-index", "--split-index")
    assert list((repository / ".git").glob("sharedindex.*"))
    with open_sides(VerifyOptions(old="HEAD~1", new="HEAD"), tmp_path / "work") as (old, new):
        for place in (old, new):
            assert git(place.root, "status", "--porcelain") == ""
            assert git(place.root, "ls-files") == "train.py\n"
