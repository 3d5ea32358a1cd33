"""Where each side runs, what it sees of the working directory, and that nothing of it stays."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from to_fsdp2.equivalence import working_files
from to_fsdp2.equivalence.options import UsageError, VerifyOptions
from to_fsdp2.equivalence.python_path import python_path
from to_fsdp2.equivalence.sides import open_sides


def git(at: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    finished = subprocess.run(["git", *identity, *arguments], cwd=at, check=True, capture_output=True, text=True)
    return finished.stdout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose HEAD says `old` and whose working directory says `new`, with untracked data beside it."""
    root = tmp_path / "repository"
    (root / "scripts").mkdir(parents=True)
    (root / "train.py").write_text("old\n")
    (root / "scripts" / "run.py").write_text("old\n")
    (root / "gone.py").write_text("old\n")
    (root / ".gitignore").write_text("data/\n*.log\n")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    (root / "train.py").write_text("new\n")
    (root / "gone.py").unlink()
    (root / "data").mkdir()
    (root / "data" / "corpus.txt").write_text("untracked")
    (root / "helper.py").write_text("untracked")
    monkeypatch.chdir(root)
    return root


def test_head_against_the_working_directory(repository: Path, tmp_path: Path):
    with open_sides(VerifyOptions(), tmp_path / "work") as (old, new):
        assert (old.root / "train.py").read_text() == "old\n"
        assert (new.root / "train.py").read_text() == "new\n"
        assert (old.root / "gone.py").exists()
        assert not (new.root / "gone.py").exists()
        for place in (old, new):
            assert (place.root / "data" / "corpus.txt").read_text() == "untracked"
            assert (place.root / "helper.py").exists()
            assert git(place.root, "rev-parse", "HEAD") == git(repository, "rev-parse", "HEAD")
            assert place.original == repository


def test_what_a_run_writes_stays_in_its_side(repository: Path, tmp_path: Path):
    with open_sides(VerifyOptions(), tmp_path / "work") as places:
        for place in places:
            (place.root / "data" / "corpus.txt").write_text("overwritten")
            (place.root / "out.pt").write_text("checkpoint")
    assert (repository / "data" / "corpus.txt").read_text() == "untracked"
    assert not (repository / "out.pt").exists()


def test_worktrees_are_taken_off_the_list_again_also_after_an_error(repository: Path, tmp_path: Path):
    with pytest.raises(KeyboardInterrupt), open_sides(VerifyOptions(), tmp_path / "work"):
        assert len(git(repository, "worktree", "list").splitlines()) == 3
        raise KeyboardInterrupt
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert git(repository, "status", "--porcelain") == " D gone.py\n M train.py\n?? helper.py\n"


def test_untracked_files_can_be_left_out(repository: Path, tmp_path: Path):
    with open_sides(VerifyOptions(untracked="none"), tmp_path / "work") as places:
        for place in places:
            assert not (place.root / "data").exists()
            assert not (place.root / "helper.py").exists()


def test_only_large_files_are_linked(repository: Path, tmp_path: Path):
    (repository / "data" / "large.bin").write_bytes(bytes(working_files.LINK_ABOVE + 1))
    with open_sides(VerifyOptions(untracked="link"), tmp_path / "work") as places:
        for place in places:
            assert (place.root / "data" / "large.bin").is_symlink()
            assert not (place.root / "data" / "corpus.txt").is_symlink()


def test_too_much_data_is_not_copied_unasked(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(working_files, "COPY_LIMIT", 5)
    with pytest.raises(UsageError, match=r"corpus\.txt.*--untracked link"), open_sides(VerifyOptions(), tmp_path / "w"):
        pass
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_environments_and_caches_are_not_copied(repository: Path, tmp_path: Path):
    for name in ("venv/pyvenv.cfg", "venv/lib/module.py", "__pycache__/train.pyc", "node_modules/x.js"):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("")
    with open_sides(VerifyOptions(), tmp_path / "work") as (old, _):
        assert not any((old.root / name).exists() for name in ("venv", "__pycache__", "node_modules"))


def test_a_link_that_leads_out_of_the_repository_still_leads_there(repository: Path, tmp_path: Path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "tokens.bin").write_text("tokens")
    (repository / "shared").symlink_to("../shared")
    (repository / "here").symlink_to("train.py")
    with open_sides(VerifyOptions(), tmp_path / "work") as (old, new):
        for place in (old, new):
            assert (place.root / "shared" / "tokens.bin").read_text() == "tokens"
            assert os.readlink(place.root / "here") == "train.py"


def test_a_tracked_link_out_of_the_repository(repository: Path, tmp_path: Path):
    (tmp_path / "elsewhere.txt").write_text("far")
    (repository / "far").symlink_to("../elsewhere.txt")
    git(repository, "add", "far")
    git(repository, "commit", "-q", "-m", "link")
    with open_sides(VerifyOptions(), tmp_path / "deep" / "work") as (old, _):
        assert (old.root / "far").read_text() == "far"


def test_from_a_subdirectory_the_sides_lie_in_the_same_subdirectory(repository: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(repository / "scripts")
    with open_sides(VerifyOptions(), tmp_path / "work") as (old, new):
        for place in (old, new):
            assert place.root == place.top / "scripts"
            assert (place.root / "run.py").exists()
            assert (place.top / "train.py").exists()


def test_a_path_goes_before_a_ref_of_the_same_name(repository: Path, tmp_path: Path):
    (repository / "main").mkdir()
    (repository / "main" / "train.py").write_text("a directory\n")
    with open_sides(VerifyOptions(old="main", new="scripts"), tmp_path / "work") as (old, new):
        assert (old.root / "train.py").read_text() == "a directory\n"
        assert (new.root / "run.py").exists()


def test_two_directories_are_copied_alone(repository: Path, tmp_path: Path):
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(name)
    options = VerifyOptions(old=str(tmp_path / "before"), new=str(tmp_path / "after"))
    with open_sides(options, tmp_path / "work") as (old, new):
        assert sorted(path.name for path in old.root.iterdir()) == ["train.py"]
        assert (new.root / "train.py").read_text() == "after"


def test_two_files_run_where_relative_arguments_lead(tmp_path: Path, monkeypatch):
    (tmp_path / "jobs").mkdir()
    for name in ("old.py", "new.py"):
        (tmp_path / "jobs" / name).write_text(name)
    (tmp_path / "config.yaml").write_text("")
    monkeypatch.chdir(tmp_path)
    (tmp_path.parent / "work").mkdir(exist_ok=True)
    options = VerifyOptions(old="jobs/old.py", new="jobs/new.py")
    with open_sides(options, tmp_path.parent / "work" / tmp_path.name) as (old, new):
        assert (old.script, new.script) == ("jobs/old.py", "jobs/new.py")
        assert (old.root / "config.yaml").exists()
        assert old.root != new.root


def test_files_elsewhere_run_in_their_own_directory(tmp_path: Path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "jobs").mkdir()
    for name in ("old.py", "new.py", "helper.py"):
        (tmp_path / "jobs" / name).write_text(name)
    monkeypatch.chdir(tmp_path / "here")
    with open_sides(VerifyOptions(old="../jobs/old.py", new="../jobs/new.py"), tmp_path / "work") as (old, _):
        assert old.script == "old.py"
        assert (old.root / "helper.py").exists()


def test_in_place_nothing_is_copied(tmp_path: Path):
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
    options = VerifyOptions(old=str(tmp_path / "before"), new=str(tmp_path / "after"), in_place=True)
    with open_sides(options, tmp_path / "work") as (old, new):
        assert (old.root, new.root) == (tmp_path / "before", tmp_path / "after")
    assert (tmp_path / "before").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (VerifyOptions(old="no-such-thing"), "neither an existing path nor a commit"),
        (VerifyOptions(old="train.py", new="."), "compare a file with a file"),
        (VerifyOptions(old="--upload-pack=x"), "neither an existing path nor a commit"),
    ],
)
def test_what_makes_no_sense_is_said(repository: Path, tmp_path: Path, options: VerifyOptions, words: str):
    with pytest.raises(UsageError, match=words), open_sides(options, tmp_path / "work"):
        pass


def test_outside_a_repository_there_is_no_ref(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="neither an existing path"), open_sides(VerifyOptions(), tmp_path):
        pass


def test_python_path_leads_into_the_side(repository: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{repository / 'scripts'}:lib:{tmp_path / 'other'}")
    with open_sides(VerifyOptions(), tmp_path / "work") as (old, _):
        assert python_path(old)[:3] == [str(old.top / "scripts"), "lib", str(tmp_path / "other")]


def test_paths_into_one_of_two_folders_lead_into_each_side(tmp_path: Path, monkeypatch):
    """The environment was made for one of them; what the other does not have stays what it is."""
    for name in ("before", "after"):
        (tmp_path / name / "src").mkdir(parents=True)
        (tmp_path / name / "src" / "model.py").touch()
    (tmp_path / "before" / "data").mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(tmp_path / "before" / name) for name in ("src", "data")))
    options = VerifyOptions(old=str(tmp_path / "before"), new=str(tmp_path / "after"))
    with open_sides(options, tmp_path / "work") as (old, new):
        assert python_path(old)[:2] == [str(old.top / "src"), str(old.top / "data")]
        assert python_path(new)[:2] == [str(new.top / "src"), str(tmp_path / "before" / "data")]


def test_an_editable_install_leads_into_the_side(repository: Path, tmp_path: Path, monkeypatch):
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (repository / "src" / "package").mkdir(parents=True)
    (packages / "__editable__.one.pth").write_text(f"{repository / 'src'}\n")
    mapping = {"module": str(repository / "scripts" / "module"), "elsewhere": "/elsewhere/elsewhere"}
    (packages / "__editable___two_finder.py").write_text(f"MAPPING: dict[str, str] = {mapping!r}\n")
    monkeypatch.syspath_prepend(str(packages))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with open_sides(VerifyOptions(), tmp_path / "work") as (old, _):
        assert set(python_path(old)) == {str(old.top / "src"), str(old.top / "scripts")}


def test_nothing_that_the_repository_configures_is_run(repository: Path, tmp_path: Path):
    """Filters, monitors and hooks, also such that are configured for worktrees alone, or in a repository inside."""
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho $0 >> {tmp_path}/ran\ncat\n")
    program.chmod(0o755)
    inner = repository / "inner"
    shutil.copytree(repository, inner)
    git(repository, "-c", "core.hooksPath=/dev/null", "add", "inner")
    (repository / ".gitattributes").write_text("* filter=evil diff=evil\n")
    git(repository, "add", ".gitattributes")
    git(repository, "commit", "-q", "-m", "second")
    settings = tmp_path / "settings"
    settings.write_text(
        f"[core]\nfsmonitor = {program}\nhooksPath = hooks\n[filter \"evil\"]\nclean = {program}\nsmudge = {program}\n"
        f"required = true\n[diff]\nexternal = {program}\n[diff \"evil\"]\ntextconv = {program}\n"
    )
    for folder in (repository, inner):
        git(folder, "config", "include.path", str(settings))
    git(repository, "config", "includeIf.gitdir:**/worktrees/**.path", str(settings))
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.symlink_to(program)
    (tmp_path / "ran").unlink(missing_ok=True)
    os.utime(repository / "train.py", (1, 1))
    with open_sides(VerifyOptions(), tmp_path / "work") as (old, new):
        assert (old.root / "train.py").read_text() == "old\n"
        assert (new.root / "train.py").read_text() == "new\n"
        assert (new.root / ".gitattributes").exists()
    assert not (tmp_path / "ran").exists()
    git(repository, "status")
    assert (tmp_path / "ran").exists(), "the repository is not as hostile as it is meant to be"
