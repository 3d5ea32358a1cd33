"""A repository that asks for programs to be run in every way that git knows; each leaves a mark when it is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from repositories import git

PROGRAM = "from torch.nn.parallel import DistributedDataParallel as DDP\nmodel = DDP(net)\nmodel.module.train()\n"

HOOKS = (
    "applypatch-msg", "commit-msg", "fsmonitor-watchman", "post-applypatch", "post-checkout", "post-commit",
    "post-index-change", "post-merge", "post-rewrite", "pre-applypatch", "pre-auto-gc", "pre-commit",
    "pre-merge-commit", "pre-push", "prepare-commit-msg", "proc-receive", "reference-transaction", "sendemail-validate",
)  # fmt: skip

ATTRIBUTES = "* filter=evil diff=evil merge=evil\n*.txt filter=evilprocess\n"


class Marks:
    """Programs that leave a mark, and the marks that are there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "programs").mkdir(parents=True)

    def program(self, name: str) -> str:
        """The path of a program that leaves a mark of this name and hands its input on."""
        path = self.folder / "programs" / name
        path.write_text(f"#!/bin/sh\ntouch '{self.folder}/ran-{name}'\ncat 2>/dev/null\n")
        path.chmod(0o755)
        return str(path)

    @property
    def left(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("ran-*"))

    def clear(self) -> None:
        for mark in self.folder.glob("ran-*"):
            mark.unlink()


def settings(marks: Marks, kind: str) -> str:
    """A configuration file with every setting that names a program; `kind` tells the marks of several apart."""
    run = {
        name: marks.program(f"{kind}-{name}")
        for name in (
            "fsmonitor", "clean", "smudge", "process", "external", "textconv", "diff", "merge", "credential", "alias", "pager",
            "editor", "ssh", "askpass", "gpg", "uploadpack", "proxy", "refs", "trailer", "browser", "difftool",
        )
    }  # fmt: skip
    return f"""
[core]
    fsmonitor = {run["fsmonitor"]}
    hooksPath = hooks-of-the-tree
    pager = {run["pager"]}
    editor = {run["editor"]}
    sshCommand = {run["ssh"]}
    askPass = {run["askpass"]}
    gitProxy = {run["proxy"]}
    alternateRefsCommand = {run["refs"]}
    attributesFile = attributes-of-the-tree
[pager]
    status = {run["pager"]}
    config = {run["pager"]}
    ls-files = {run["pager"]}
[filter "evil"]
    clean = {run["clean"]}
    smudge = {run["smudge"]}
    required = true
[filter "evilprocess"]
    process = {run["process"]}
    required = true
[diff]
    external = {run["external"]}
[diff "evil"]
    textconv = {run["textconv"]}
    command = {run["diff"]}
[merge "evil"]
    driver = {run["merge"]}
[credential]
    helper = !{run["credential"]}
[alias]
    status = !{run["alias"]}
    ls-files = !{run["alias"]}
    config = !{run["alias"]}
    st = !{run["alias"]}
[gpg]
    program = {run["gpg"]}
[remote "origin"]
    url = ext::{run["uploadpack"]}
    promisor = true
    partialclonefilter = blob:none
    uploadpack = {run["uploadpack"]}
[protocol "ext"]
    allow = always
[trailer "x"]
    command = {run["trailer"]}
[browser "x"]
    cmd = {run["browser"]}
[difftool "x"]
    cmd = {run["difftool"]}
[status]
    submoduleSummary = true
"""


def make_hostile(folder: Path, marks: Marks, kind: str) -> None:
    """Turn a folder into a hostile repository with one commit.

    `kind`: where the settings are: "config" itself, a file that it "include"s, the configuration of the "worktree" alone,
    beside a ".git" file that "points" elsewhere, in a "submodule", or in a repository that lies untracked in it ("nested").
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(PROGRAM)
    (folder / "notes.txt").write_text("notes\n")
    (folder / "ignored.py").write_text(PROGRAM)
    (folder / ".gitignore").write_text("ignored.py\n")
    (folder / ".gitattributes").write_text(ATTRIBUTES)
    (folder / "attributes-of-the-tree").write_text(ATTRIBUTES)
    (folder / "hooks-of-the-tree").mkdir()
    for hook in HOOKS:
        hook_program(folder / "hooks-of-the-tree" / hook, marks, f"{kind}-tree-hook")
    inner = folder / "inner"
    if kind in ("submodule", "nested"):
        make_hostile(inner, marks, "config")
    assert git(folder, "init", "-q").returncode == 0
    if kind == "submodule":
        (folder / ".gitmodules").write_text('[submodule "inner"]\n\tpath = inner\n\turl = ./inner\n\tignore = none\n')
    elif kind == "nested":
        (folder / ".gitignore").write_text("ignored.py\n")
    names = [path.name for path in folder.iterdir() if path.name not in (".git", *(["inner"] if kind == "nested" else []))]
    assert git(folder, "add", "-f", *names).returncode == 0
    assert git(folder, "commit", "-q", "-m", "start").returncode == 0
    for file in (*folder.glob("*.py"), *folder.glob("*.txt")):
        os.utime(file, (1, 1))  # so that git has to look into them, which is where filters come in
    own = folder / ".git"
    text = settings(marks, kind)
    if kind == "include":
        (folder / "settings-of-the-tree").write_text(text)
        append(own / "config", "[include]\n\tpath = ../settings-of-the-tree\n")
        append(own / "config", f'[includeIf "gitdir:{folder}/"]\n\tpath = ../settings-of-the-tree\n')
    elif kind == "worktree":
        append(own / "config", "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tworktreeConfig = true\n")
        (own / "config.worktree").write_text(text)
    elif kind == "points":
        append(own / "config", text)
        own.rename(folder.parent / "elsewhere")
        own.write_text("gitdir: ../elsewhere\n")
        own = folder.parent / "elsewhere"
    elif kind == "config":
        append(own / "config", text)
    for hook in HOOKS:
        hook_program(own / "hooks" / hook, marks, f"{kind}-hook")
    append(own / "info" / "attributes", ATTRIBUTES)
    marks.clear()


def hook_program(path: Path, marks: Marks, name: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(marks.program(name))


def append(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as opened:
        opened.write(text)


def plain_git_runs(folder: Path) -> None:
    """What anybody's git does there: the proof that the repository is as hostile as it is meant to be."""
    for arguments in (("status",), ("diff",), ("ls-files", "-o"), ("st",)):
        subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=False)
