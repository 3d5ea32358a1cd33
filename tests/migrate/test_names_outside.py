"""A wrapper that no program comes to stays, unless a name in a configuration, a script or a package may lead to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from to_fsdp2.migrate.config import is_package
from to_fsdp2.migrate.names_outside import NamesOutside


@pytest.mark.parametrize(
    ("label", "text", "is_said"),
    [("conf/train.yaml", "_target_: tools.Wrapper\n", True), ("run.sh", "python -c 'tools.Wrapper'\n", True),
     ("notes.md", "Wrapper is old\n", False), ("conf/other.yaml", "WrapperKind: 1\n", False),
     (".git/config", "Wrapper", False)],
)  # fmt: skip
def test_configurations_are_looked_at(tmp_path: Path, label: str, text: str, is_said: bool) -> None:
    (tmp_path / label).parent.mkdir(exist_ok=True)
    (tmp_path / label).write_text(text)
    names = NamesOutside(tmp_path, {"tools.py": b"class Wrapper: pass"}, ["tools.py"])
    assert names.hold("Wrapper") is is_said
    assert names.answers == {"Wrapper": is_said}


def test_python_files_that_were_not_analysed_count(tmp_path: Path) -> None:
    contents = {"tools.py": b"class Wrapper: pass", "plan.py": b"NAMES = ['Wrapper']"}
    assert NamesOutside(tmp_path, contents, ["tools.py"]).hold("Wrapper")
    assert not NamesOutside(tmp_path, contents, ["tools.py", "plan.py"]).hold("Wrapper")


def test_what_can_be_installed_is_a_package(tmp_path: Path) -> None:
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text("[tool.ruff]\nline-length = 100\n")
    assert not is_package(tmp_path, pyproject) and not is_package(tmp_path, None)
    pyproject.write_text("[project]\nname = 'x'\n")
    assert is_package(tmp_path, pyproject)
    (tmp_path / "setup.py").write_text("")
    assert is_package(tmp_path, None)
