"""`apply --commits`: first what works under both wrappers, then a commit for each program, which reverts alone."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from repositories import commit_all, git

Real = Callable[..., tuple[int, str, str]]

PROGRAM = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from common import save


def main():
    model = DDP(torch.nn.Linear(4, 4))
    for step in range(4):
        with model.no_sync():
            model(torch.ones(2, 4)).sum().backward()
    save(model)


if __name__ == "__main__":
    main()
"""
SAVE = "import torch\n\n\ndef save(model):\n    torch.save(model.module.state_dict(), 'x.pt')\n"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("GIT_AUTHOR", "GIT_COMMITTER"):
        monkeypatch.delenv(f"{name}_NAME", raising=False)
    (tmp_path / "one.py").write_text(PROGRAM.replace("from common import save", "from first import save"))
    (tmp_path / "two.py").write_text(PROGRAM.replace("from common import save", "from second import save"))
    (tmp_path / "first.py").write_text(SAVE)
    (tmp_path / "second.py").write_text(SAVE)
    commit_all(tmp_path)
    git(tmp_path, "config", "user.name", "a")
    git(tmp_path, "config", "user.email", "a@example.org")
    return tmp_path


def out(folder: Path, *arguments: str) -> str:
    result = git(folder, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout.decode().strip()


def texts(folder: Path, revision: str) -> dict[str, str]:
    names = out(folder, "ls-tree", "-r", "--name-only", revision).splitlines()
    return {name: out(folder, "show", f"{revision}:{name}") for name in names}


def test_one_commit_for_both_worlds_and_one_for_each_program(real: Real, repository: Path) -> None:
    code, _, err = real("apply", "--commits")
    assert code in (0, 1), err
    assert out(repository, "log", "--format=%s", "--reverse").splitlines() == [
        "start",
        "Prepare for FSDP2: what works under old and new wraps",
        "Move one.py to FSDP2",
        "Move two.py to FSDP2",
    ]
    assert out(repository, "status", "--porcelain") == ""
    prepared, after = texts(repository, "HEAD~2"), texts(repository, "HEAD")
    for name in ("one.py", "two.py"):
        assert "DDP(torch.nn.Linear" in prepared[name]
        assert "model.no_sync()" not in prepared[name]
        assert "DDP" not in after[name]
    assert {name for name in after if after[name] != prepared[name]} <= {"one.py", "two.py", "first.py", "second.py"}
    for text in (*prepared.values(), *after.values()):
        ast.parse(text)
    assert real("diff")[:2] == (0, "")
    assert "to-fsdp2 verify --old HEAD~3 --new HEAD~2" in err


@pytest.mark.parametrize(("reverted", "old", "new"), [("HEAD", "two.py", "one.py"), ("HEAD~1", "one.py", "two.py")])
def test_each_program_reverts_alone(real: Real, repository: Path, reverted: str, old: str, new: str) -> None:
    real("apply", "--commits")
    assert git(repository, "revert", "--no-edit", reverted).returncode == 0
    assert "DDP(torch.nn.Linear" in (repository / old).read_text()
    assert "DDP" not in (repository / new).read_text()


def test_programs_that_share_a_changed_file_are_one(real: Real, repository: Path) -> None:
    for name in ("one.py", "two.py"):
        (repository / name).write_text(PROGRAM)
    (repository / "first.py").rename(repository / "common.py")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "shared")
    real("apply", "--commits")
    assert out(repository, "log", "-1", "--format=%s") == "Move one.py and 1 more to FSDP2"
    assert out(repository, "log", "-3", "--format=%s").splitlines()[-1] == "shared"


def test_nothing_of_the_repository_runs(real: Real, repository: Path, tmp_path: Path) -> None:
    ran = tmp_path / ".git" / "ran"
    hook = tmp_path / ".git" / "hooks" / "post-commit"
    hook.parent.mkdir(exist_ok=True)
    for name in ("pre-commit", "post-commit", "commit-msg", "reference-transaction", "post-index-change"):
        hook.with_name(name).write_text(f"#!/bin/sh\ntouch {ran}\n")
        hook.with_name(name).chmod(0o755)
    git(repository, "config", "filter.x.clean", f"touch {ran}; cat")
    git(repository, "config", "commit.gpgsign", "true")
    git(repository, "config", "gpg.program", f"touch {ran}")
    (tmp_path / ".git" / "info" / "attributes").write_text("*.py filter=x\n")
    assert real("apply", "--commits")[0] in (0, 1)
    assert not ran.exists()
    assert len(out(repository, "log", "--format=%h").splitlines()) == 4


def test_line_ends_are_those_that_git_would_commit(real: Real, repository: Path) -> None:
    (repository / ".gitattributes").write_text("*.py text eol=crlf\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "line ends")
    for file in repository.glob("*.py"):
        file.unlink()
    git(repository, "checkout", "-q", "--", ".")
    assert b"\r\n" in (repository / "one.py").read_bytes()
    real("apply", "--commits")
    assert b"\r\n" in (repository / "one.py").read_bytes()
    assert "\r" not in git(repository, "show", "HEAD:one.py").stdout.decode()
    assert out(repository, "status", "--porcelain") == ""


def test_where_it_cannot_be(real: Real, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert real("apply", "--commits", "--allow-dirty")[0] == 64
    git(repository, "checkout", "-q", "--detach")
    code, _, err = real("apply", "--commits")
    assert code == 64
    assert "no branch is checked out" in err
    assert out(repository, "status", "--porcelain") == ""


def test_the_state_after_each_commit_imports(real: Real, repository: Path) -> None:
    """Every name that a state imports from the helpers is there."""
    real("apply", "--commits")
    for revision in ("HEAD~2", "HEAD~1", "HEAD"):
        state = texts(repository, revision)
        held = {
            node.name for node in ast.parse(state["fsdp2_helpers.py"]).body if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }
        for name, text in state.items():
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ImportFrom) and node.module == "fsdp2_helpers":
                    assert {alias.name for alias in node.names} <= held, (revision, name)


def test_a_worktree_has_a_branch_of_its_own(real: Real, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = repository / "tree"
    assert git(repository, "worktree", "add", "-q", "-b", "side", str(tree)).returncode == 0
    main = out(repository, "rev-parse", "HEAD")
    monkeypatch.chdir(tree)
    assert real("apply", "--commits")[0] in (0, 1)
    assert out(tree, "log", "-1", "--format=%s") == "Move two.py to FSDP2"
    assert out(tree, "status", "--porcelain") == ""
    assert out(repository, "rev-parse", "HEAD") == main
    assert subprocess.run(["git", "fsck", "--strict"], cwd=tree, capture_output=True, check=False).returncode == 0
