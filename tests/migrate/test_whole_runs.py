"""The real analysis through the real command, on every program of the corpus."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from report_schema import SCHEMA
from repositories import commit_all, git
from to_fsdp2.corpus.cases import DEMO_FOLDER, load_cases
from to_fsdp2.migrate.__main__ import run

FOLDERS = {"demo": DEMO_FOLDER, **{case.name: case.before for case in load_cases()}}


def texts(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.parts
    }


@pytest.fixture(params=sorted(FOLDERS))
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    shutil.copytree(FOLDERS[request.param], folder, ignore=shutil.ignore_patterns("__pycache__"))
    commit_all(folder)
    return folder


@pytest.fixture
def to_fsdp2(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., tuple[int, bytes]]:
    """Runs the command line in the repository; returns (exit code, stdout)."""
    monkeypatch.chdir(repository)

    def call(*arguments: str) -> tuple[int, bytes]:
        return run(list(arguments)), capfdbinary.readouterr().out

    return call


def test_from_scan_to_a_second_run(repository: Path, to_fsdp2: Callable[..., tuple[int, bytes]]) -> None:
    before = texts(repository)

    code, out = to_fsdp2("scan", "--format", "json", "--all")
    document = json.loads(out)
    assert code == 0
    assert document["errors"] == []
    assert document["findings"]
    jsonschema.validate(document, SCHEMA)
    for finding in document["findings"]:
        lines = before[finding["file"]].decode().splitlines()
        assert finding["column"] <= len(lines[finding["line"] - 1]) + 1
    assert texts(repository) == before

    code, patch = to_fsdp2("diff")
    assert code == (1 if patch else 0)
    if patch:
        applied = git(repository, "apply", "-", stdin=patch)
        assert applied.returncode == 0, applied.stderr
    by_git = texts(repository)
    git(repository, "checkout", "-q", "--", ".")
    git(repository, "clean", "-fdq")

    code, _ = to_fsdp2("apply")
    assert code in (0, 1)
    after = texts(repository)
    assert after == by_git
    for name, data in after.items():
        if name.endswith(".py"):
            ast.parse(data)

    assert to_fsdp2("diff") == (0, b"")
