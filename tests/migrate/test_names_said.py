"""What people say of names after the tool could not know: `# to-fsdp2: sharded` and `plain`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from registry_program import ENGINE, MAIN
from repositories import commit_all
from to_fsdp2.migrate.__main__ import run


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (folder / "main.py").write_text(MAIN)
    return folder


def migrated(folder: Path, argument: str = "", attribute: str = "") -> str:
    """The engine after `apply`, with these comments."""
    (folder / "engine.py").write_text(ENGINE.format(argument=argument, attribute=attribute))
    commit_all(folder)
    assert run(["apply"]) in (0, 1)
    return (folder / "engine.py").read_text()


def test_what_nothing_is_said_of_gets_the_general_form(repository: Path) -> None:
    text = migrated(repository)
    assert "no_gradient_sync(model)" in text
    assert "unwrap(model)" in text
    assert "unwrap(self.net)" in text


def test_sharded_gives_the_idiom(repository: Path) -> None:
    text = migrated(repository, "  # to-fsdp2: sharded", "  # to-fsdp2: sharded, by the registry")
    assert "model.set_requires_gradient_sync(" in text
    assert "return model\n" in text
    assert "return self.net\n" in text
    assert "fsdp2_helpers" not in text


def test_plain_leaves_it_alone(repository: Path) -> None:
    text = migrated(repository, "  # to-fsdp2: plain", "  # to-fsdp2: plain")
    assert text == ENGINE.format(argument="  # to-fsdp2: plain", attribute="  # to-fsdp2: plain")


def test_it_is_of_one_name_alone(repository: Path) -> None:
    text = migrated(repository, "  # to-fsdp2: sharded")
    assert "model.set_requires_gradient_sync(" in text
    assert "unwrap(self.net)" in text


@pytest.mark.parametrize("comment", ["# to-fsdp2: shraded", "# to-fsdp2: plane", "# to-fsdp2: sharded"])
def test_one_that_says_nothing_is_named(repository: Path, comment: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = ENGINE.format(argument="", attribute="").replace("return model.module", f"return model.module  {comment}")
    (repository / "engine.py").write_text(text)
    assert run(["scan", "--format", "json"]) == 0
    found = [f for f in json.loads(capsys.readouterr().out)["findings"] if f["rule"] == "FS992"]
    assert [(f["file"], f["line"]) for f in found] == [("engine.py", 8)]
    assert "sharded" in found[0]["message"]


@pytest.mark.parametrize(("value", "is_wrong"), [
    ("DDP(build())", True), ("DDP(build()) if name else build()", True), ("build()", False), ("keep(DDP(build()))", False),
])  # fmt: skip
def test_plain_of_a_wrap_is_named_and_not_heeded(
    repository: Path, value: str, is_wrong: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    text = MAIN.replace("DDP(build())", f"{value}  # to-fsdp2: plain")
    (repository / "main.py").write_text(text + "    print(model.module)\n")
    commit_all(repository)
    assert run(["scan", "--format", "json"]) == 0
    found = [f for f in json.loads(capsys.readouterr().out)["findings"] if f["rule"] == "FS992"]
    assert [(f["line"], "is sharded" in f["message"]) for f in found] == ([(9, True)] if is_wrong else [])
    if value == "DDP(build())":
        assert run(["apply"]) in (0, 1)
        assert "print(model)" in (repository / "main.py").read_text()


def test_plain_of_a_wrap_that_is_left_out_is_right(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    comments = "# to-fsdp2: ignore[FS120] stays\n    model = DDP(build())  # to-fsdp2: plain"
    (repository / "main.py").write_text(MAIN.replace("model = DDP(build())", comments))
    assert run(["scan", "--format", "json"]) == 0
    assert not [f for f in json.loads(capsys.readouterr().out)["findings"] if f["rule"] == "FS992"]
