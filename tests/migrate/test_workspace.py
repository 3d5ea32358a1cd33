"""Which files a run looks at."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from repositories import commit_all, git
from to_fsdp2.migrate.ignore import exclude_rules
from to_fsdp2.migrate.workspace import Workspace, open_workspace
from to_fsdp2.transforms.findings import UserError


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(root: Path, *names: str, text: str = "x = 1\n") -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def found(*paths: str, exclude: tuple[str, ...] = ()) -> list[str]:
    return opened(*paths, exclude=exclude).files


def opened(*paths: str, exclude: tuple[str, ...] = ()) -> Workspace:
    return open_workspace(list(paths) or ["."], [exclude_rules(Path.cwd(), exclude)])


def test_python_files_below_the_named_folders(tree: Path) -> None:
    write(tree, "a.py", "pkg/b.py", "pkg/data.txt", "other/c.py")
    assert found() == ["a.py", "other/c.py", "pkg/b.py"]
    assert found("pkg") == ["pkg/b.py"]
    assert found("pkg", "a.py", "pkg/b.py") == ["a.py", "pkg/b.py"]


def test_globs_that_the_shell_left_alone(tree: Path) -> None:
    write(tree, "a.py", "pkg/b.py", "pkg/deep/c.py")
    assert found("**/c.py", "pkg/*.py") == ["pkg/b.py", "pkg/deep/c.py"]


@pytest.mark.parametrize("path", ["missing.py", "missing/*.py"])
def test_a_path_that_does_not_exist(tree: Path, path: str) -> None:
    with pytest.raises(UserError, match="no such file"):
        found(path)


def test_a_named_script_without_ending(tree: Path) -> None:
    write(tree, "train")
    assert found("train") == ["train"]


def test_default_excludes(tree: Path) -> None:
    write(tree, ".git/hooks/a.py", "env/lib/a.py", "env/pyvenv.cfg", "conda/conda-meta/x.json", "conda/a.py")
    write(tree, "build/lib/a.py", "dist/a.py", "x/site-packages/a.py", "x/__pycache__/a.py", "node_modules/a.py")
    write(tree, "pkg/build/__init__.py", "a.py")
    assert found() == ["a.py", "pkg/build/__init__.py"]


def test_what_is_named_is_looked_at(tree: Path) -> None:
    write(tree, "env/pyvenv.cfg", "env/site-packages/lib/a.py", "build/b.py")
    write(tree, ".gitignore", text="env\nbuild\n")
    (tree / ".git").mkdir()
    assert found("env/site-packages/lib", "build") == ["build/b.py", "env/site-packages/lib/a.py"]


def test_gitignore_nested_and_negated(tree: Path) -> None:
    write(tree, "a.py", "out/a.py", "gen_a.py", "pkg/gen_b.py", "pkg/keep/gen_c.py", "pkg/local.py", "local.py")
    write(tree, ".gitignore", text="out/\ngen_*.py\n")
    write(tree, "pkg/.gitignore", text="/local.py\n")
    write(tree, "pkg/keep/.gitignore", text="!gen_*.py\n")
    assert found() == ["a.py", "local.py", "pkg/keep/gen_c.py"]


def test_gitignore_above_the_named_folder(tree: Path) -> None:
    write(tree, "pkg/deep/a.py", "pkg/deep/gen_a.py")
    write(tree, ".gitignore", text="gen_*.py\n")
    commit_all_but_ignored(tree)
    assert found("pkg/deep") == ["pkg/deep/a.py"]


def commit_all_but_ignored(tree: Path) -> None:
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "start")


def test_tracked_files_are_never_ignored(tree: Path) -> None:
    write(tree, "lib/a.py", "lib/deep/b.py")
    write(tree, ".gitignore", text="lib/\n")
    commit_all(tree)
    write(tree, "lib/untracked.py")
    assert found() == ["lib/a.py", "lib/deep/b.py"]


def test_same_files_as_git_lists(tree: Path) -> None:
    write(tree, "a.py", "b/c.py", "b/d_test.py", "b/x/y.py", "b/x/z.py", "q/r.py", "q/s/t.py", "u/v/w.py")
    write(tree, ".gitignore", text="*_test.py\n/q/*\n!/q/s/\nv/\n")
    write(tree, "b/.gitignore", text="x/*\n!x/z.py\n")
    git(tree, "init", "-q")
    listed = git(tree, "ls-files", "--others", "--exclude-standard", "*.py").stdout.decode().split()
    assert found() == sorted(listed)
    assert "b/x/z.py" in listed


def test_exclude(tree: Path) -> None:
    write(tree, "a.py", "tests/b.py", "pkg/tests/c.py", "pkg/d_old.py")
    assert found(exclude=("tests/", "*_old.py")) == ["a.py"]
    assert found(exclude=("/tests",)) == ["a.py", "pkg/d_old.py", "pkg/tests/c.py"]


def test_links(tree: Path) -> None:
    write(tree, "real/a.py", "real/b.py")
    (tree / "again.py").symlink_to("real/a.py")
    (tree / "loop").symlink_to(tree)
    (tree / "real" / "self").symlink_to(tree / "real")
    os.link(tree / "real" / "b.py", tree / "real" / "c.py")
    assert found() == ["real/a.py", "real/b.py"]
    assert found("again.py") == ["again.py"]
    assert found("loop/real") == ["real/a.py", "real/b.py"]


def test_what_cannot_be_read_is_an_error_not_the_end(tree: Path) -> None:
    write(tree, "a.py")
    (tree / "nowhere.py").symlink_to("missing")  # has no code
    (tree / "itself.py").symlink_to("itself.py")
    (tree / ".#a.py").symlink_to("user@host.1234")
    (tree / "folder.py").mkdir()
    workspace = opened()
    assert workspace.files == ["a.py"]
    assert [(error.file, error.line) for error in workspace.errors] == [("itself.py", None)]


def test_labels_are_relative_to_the_repository_and_shown_from_here(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tree, "pkg/a.py", "other/b.py")
    (tree / ".git").mkdir()
    monkeypatch.chdir(tree / "pkg")
    workspace = opened(".", "../other")
    assert workspace.root == tree
    assert workspace.files == ["other/b.py", "pkg/a.py"]
    assert [workspace.display(label) for label in workspace.files] == ["../other/b.py", "a.py"]


def test_links_inside_the_tree_are_other_names(tree: Path) -> None:
    write(tree, "a/optim.py", "shared/net.py")
    (tree / "b").mkdir()
    (tree / "b/own.py").symlink_to("../a/optim.py")
    (tree / "b/shared").symlink_to("../shared")
    (tree / "b/gone.py").symlink_to("../nowhere.py")
    workspace = opened()
    assert workspace.files == ["a/optim.py", "shared/net.py"]
    assert workspace.links == {"b/own.py": "a/optim.py", "b/shared/": "shared/"}
