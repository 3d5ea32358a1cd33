"""Nothing of a repository runs because it is looked at or migrated."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hostile import PROGRAM, Marks, append, make_hostile, plain_git_runs
from repositories import commit_all, git
from to_fsdp2.migrate.__main__ import run

KINDS = ["config", "include", "worktree", "points", "submodule", "nested"]
COMMANDS = [("scan",), ("check",), ("diff",), ("scan", "train.py"), ("apply",), ("apply", "--allow-dirty")]


@dataclass
class Finished:
    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Finished]


@pytest.fixture
def to_fsdp2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Command:
    """The command line, run in a folder and an environment."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def call(folder: Path, *arguments: str, **environment: str) -> Finished:
        monkeypatch.chdir(folder)
        with monkeypatch.context() as changed:
            for name, value in environment.items():
                changed.setenv(name, value)
            code = run(list(arguments))
            out, err = capfd.readouterr()
            return Finished(code, out, err)

    return call


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_that_the_repository_names_is_run(to_fsdp2: Command, tmp_path: Path, kind: str) -> None:
    marks = Marks(tmp_path / "marks")
    folder = tmp_path / "repository"
    make_hostile(folder, marks, kind)
    for command in COMMANDS:
        finished = to_fsdp2(folder, *command)
        assert finished.returncode in (0, 1), finished.stderr
        assert "train.py" in finished.stdout
        assert marks.left == [], command
        (folder / "train.py").write_text(PROGRAM)
        os.utime(folder / "train.py", (1, 1))
    plain_git_runs(folder)
    assert marks.left != [] or kind == "nested"


def test_the_tree_is_judged_without_the_settings(to_fsdp2: Command, tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")
    folder = tmp_path / "repository"
    make_hostile(folder, marks, "config")
    append(folder / "notes.txt", "more\n")
    refused = to_fsdp2(folder, "apply")
    assert refused.returncode == 64
    assert "uncommitted changes in notes.txt" in refused.stderr
    assert marks.left == []


@pytest.mark.parametrize("kind", ["loop", "nowhere", "garbage", "empty", "binary"])
def test_a_git_file_that_leads_nowhere(to_fsdp2: Command, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    texts = {
        "loop": b"gitdir: .git\n",
        "nowhere": b"gitdir: /nowhere\n",
        "garbage": b"nonsense\n",
        "empty": b"",
        "binary": b"\0" * 99,
    }
    (folder / ".git").write_bytes(texts[kind])
    assert to_fsdp2(folder, "scan").returncode == 0
    refused = to_fsdp2(folder, "apply")
    assert (refused.returncode, refused.stdout) == (64, "")
    assert "git cannot tell whether the tree is clean" in refused.stderr
    assert (folder / "train.py").read_text() == PROGRAM


@pytest.mark.parametrize(
    "name", [".gitignore", "requirements.txt", "pyproject.toml", ".git/info/exclude", ".git/HEAD", ".git/config"]
)
@pytest.mark.parametrize("kind", ["pipe", "endless", "terminal", "loop"])
def test_what_is_no_file_is_not_waited_for(to_fsdp2: Command, tmp_path: Path, name: str, kind: str) -> None:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    commit_all(folder)
    file = folder / name
    file.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to({"endless": "/dev/zero", "terminal": "/dev/tty", "loop": file.name}[kind])
    finished = to_fsdp2(folder, "scan")
    assert finished.returncode == 0, finished.stderr
    assert "train.py" in finished.stdout


def test_a_git_of_the_repositorys_own_is_not_used(to_fsdp2: Command, tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")
    folder = tmp_path / "repository"
    make_hostile(folder, marks, "config")
    for name in ("git", "rich.py", "libcst.py", "ast.py", "sitecustomize.py"):
        (folder / name).symlink_to(marks.program(name))
    for path in (f".:{os.environ['PATH']}", f":{os.environ['PATH']}"):
        assert to_fsdp2(folder, "scan", PATH=path).returncode in (0, 2)
        assert marks.left == []


def test_settings_that_change_how_files_compare_are_kept(to_fsdp2: Command, tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    commit_all(folder)
    (folder / "train.py").chmod(0o755)
    assert to_fsdp2(folder, "apply").returncode == 64
    assert git(folder, "config", "core.fileMode", "false").returncode == 0
    assert to_fsdp2(folder, "apply").returncode in (0, 1)


def test_a_worktree_and_other_object_names(to_fsdp2: Command, tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    assert git(folder, "init", "-q", "--object-format=sha256").returncode == 0
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "start")
    git(folder, "worktree", "add", "-q", "../tree")
    git(folder, "update-index", "--split-index")
    for place in (folder, tmp_path / "tree"):
        assert to_fsdp2(place, "apply").returncode in (0, 1)
        assert "shard_like_ddp" in (place / "train.py").read_text()


def test_ignore_rules_of_git_beside_the_tree(to_fsdp2: Command, tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    folder.mkdir()
    for name in ("train.py", "a.py", "b.py", "c.py", "kept.py"):
        (folder / name).write_text(PROGRAM)
    git(folder, "init", "-q")
    git(folder, "add", "train.py")
    git(folder, "commit", "-q", "-m", "start")
    append(folder / ".git" / "info" / "exclude", "a.py\nkept.py\n")
    (folder / ".gitignore").write_text("!kept.py\n")
    (tmp_path / "settings" / "git").mkdir(parents=True)
    (tmp_path / "settings" / "git" / "ignore").write_text("b.py\n")
    (tmp_path / "theirs").write_text("c.py\n")
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "settings")}
    assert programs(to_fsdp2(folder, "scan", **environment)) == ["c.py", "kept.py", "train.py"]
    git(folder, "config", "core.excludesFile", str(tmp_path / "theirs"))
    assert programs(to_fsdp2(folder, "scan", **environment)) == ["b.py", "kept.py", "train.py"]
    assert programs(to_fsdp2(folder, "scan", "a.py", **environment)) == ["a.py"]


def programs(finished: Finished) -> list[str]:
    return sorted(
        entry
        for line in finished.stdout.splitlines()
        if " file to change" in line
        for entry in line.partition(": ")[0].split(", ")
    )
