"""`apply --tidy`: what is taken out of helper modules and imports of them, and what stays since something may use it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from registry_program import ENGINE, MAIN
from repositories import commit_all, git
from to_fsdp2.migrate.__main__ import run
from to_fsdp2.transforms.rewrites.helper_place import module_text


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (folder / "main.py").write_text(MAIN)
    return folder


def migrate(folder: Path) -> None:
    (folder / "engine.py").write_text(ENGINE.format(argument="", attribute=""))
    commit_all(folder)
    assert run(["apply"]) in (0, 1)


def test_tidy_takes_out_what_nothing_uses(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    migrate(repository)
    helpers = repository / "fsdp2_helpers.py"
    before = helpers.read_text()
    engine = (repository / "engine.py").read_text().replace("return unwrap(model)", "return model")
    (repository / "engine.py").write_text(engine.replace("return unwrap(self.net)", "return self.net"))
    commit_all(repository)
    capsys.readouterr()
    assert run(["apply", "--tidy"]) == 0
    undo = re.search(r"to undo: (.*)", capsys.readouterr().err)
    assert undo is not None
    assert "import no_gradient_sync\n" in (repository / "engine.py").read_text()
    after = helpers.read_text()
    assert "def unwrap(" in before
    assert "def unwrap(" not in after
    assert "def no_gradient_sync(" in after
    compile(after, "helpers", "exec")
    assert run(["check"]) == 0
    assert run(["apply", "--tidy", "--allow-dirty"]) == 0
    assert helpers.read_text() == after
    assert git(repository, *undo[1].split()[3:]).returncode == 0
    assert helpers.read_text() == before


def test_tidy_leaves_what_it_cannot_judge(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    migrate(repository)
    helpers = repository / "fsdp2_helpers.py"
    (repository / "engine.py").write_text("from fsdp2_helpers import *  # noqa\n")
    text = helpers.read_text()
    commit_all(repository)
    assert run(["apply", "--tidy"]) == 0
    assert helpers.read_text() == text
    (repository / "engine.py").write_text("")
    helpers.write_text(text + "\n\ndef mine():\n    pass\n")
    assert run(["apply", "--tidy", "--allow-dirty"]) == 0
    assert "def mine" in helpers.read_text()
    capsys.readouterr()
    assert run(["apply", "--tidy", "--allow-dirty", "engine.py"]) == 64
    assert "without a path" in capsys.readouterr().err


def test_a_module_that_nothing_uses_is_named(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    migrate(repository)
    for name in ("main.py", "engine.py"):
        (repository / name).write_text("")
    assert run(["apply", "--tidy", "--allow-dirty"]) == 0
    assert "nothing uses fsdp2_helpers.py any more: delete it" in capsys.readouterr().err


@pytest.fixture
def imported(repository: Path) -> Path:
    """A repository with two helpers, of which one file imports both and uses neither."""
    folder = repository
    (folder / "main.py").unlink()
    (folder / "fsdp2_helpers.py").write_text(module_text({"unwrap", "no_gradient_sync"}))
    (folder / "engine.py").write_text("from fsdp2_helpers import no_gradient_sync, unwrap\n\nprint(no_gradient_sync)\n")
    return folder


def left(folder: Path) -> tuple[bool, bool]:
    """Whether `unwrap` is still imported, and still defined, after `apply --tidy`."""
    commit_all(folder)
    assert run(["apply", "--tidy"]) in (0, 2)
    text = (folder / "fsdp2_helpers.py").read_text()
    assert "def no_gradient_sync(" in text
    return "unwrap" in (folder / "engine.py").read_text().partition("\n\n")[0], "def unwrap(" in text


def test_what_no_file_says_is_taken_out(imported: Path) -> None:
    (imported / "other.py").write_text("from fsdp2_helpers import no_gradient_sync as quiet\n\nquiet(1)\n")
    assert left(imported) == (False, False)


@pytest.mark.parametrize(("name", "text"), [
    ("other.py", "from engine import unwrap\n\nunwrap(1)\n"),
    ("other.py", "import engine\n\nengine.unwrap(1)\n"),
    ("other.py", "import engine\nfrom fsdp2_helpers import no_gradient_sync, unwrap\n\nengine.unwrap(no_gradient_sync)\n"),
    ("other.py", "def f():\n    from fsdp2_helpers import unwrap as u\n    return u\n"),
    ("broken.py", "from fsdp2_helpers import unwrap\nprint 1\n"),
    ("config.yaml", "call: fsdp2_helpers.unwrap\n"),
    ("run.sh", "python -c 'import engine; engine.unwrap(1)'\n"),
    ("types.pyi", "from engine import unwrap\n"),
    ("notes.txt", "see unwrap\n"),
    ("launcher", "#!/usr/bin/env python\nfrom engine import unwrap\n"),
    (".ci/job", "import engine; engine.unwrap(1)\n"),
    ("ignored/tool.py", "from engine import unwrap\n"),
    ("build/tool.py", "from engine import unwrap\n"),
    ("a.ipynb", '{"cells": [{"cell_type": "code", "source": ["from engine import unwrap"]}]}'),
])  # fmt: skip
def test_what_any_other_file_says_stays(imported: Path, name: str, text: str) -> None:
    (imported / ".gitignore").write_text("ignored/\n")
    (imported / name).parent.mkdir(exist_ok=True)
    (imported / name).write_text(text)
    assert left(imported) == (True, True)


@pytest.mark.parametrize("line", [
    "from fsdp2_helpers import no_gradient_sync, unwrap  # noqa: F401\n",
    "from fsdp2_helpers import no_gradient_sync, unwrap; x = 1\n",
    "from fsdp2_helpers import (\n    no_gradient_sync,\n    unwrap,  # kept for others\n)\n",
])  # fmt: skip
def test_what_an_import_keeps_stays_in_the_module(imported: Path, line: str) -> None:
    (imported / "engine.py").write_text(f"{line}\nprint(no_gradient_sync)\n")
    assert left(imported) == (True, True)
    compile((imported / "engine.py").read_text(), "engine", "exec")


def test_data_is_not_read_and_what_cannot_be_read_is_told(
    imported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (imported / "weights.bin").write_bytes(b"unwrap\0unwrap")
    assert left(imported) == (False, False)
    monkeypatch.setattr("to_fsdp2.migrate.mentions._MOST_FILES", 2)
    assert run(["apply", "--tidy", "--allow-dirty"]) == 0
    assert "--tidy takes nothing out" in capsys.readouterr().err
