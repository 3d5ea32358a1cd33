"""`[tool.to-fsdp2]` and the project's own torch requirement."""

from __future__ import annotations

from pathlib import Path

import pytest
from to_fsdp2.migrate.config import Configuration, console_scripts, find_pyproject, read_configuration, required_torch
from to_fsdp2.transforms.findings import UserError


def pyproject(folder: Path, text: str) -> Path:
    file = folder / "pyproject.toml"
    file.write_text(text)
    return file


def test_no_section(tmp_path: Path) -> None:
    assert read_configuration(pyproject(tmp_path, "[project]\nname = 'x'\n")) == Configuration()


def test_all_settings(tmp_path: Path) -> None:
    text = """
[tool.to-fsdp2]
target-torch = "2.8"
ddp = "replicate"
checkpoint = "dcp"
level = "safe"
select = ["FS1"]
ignore = ["FS301"]
exclude = ["third_party/"]
helpers = "src/utils"
"""
    expected = Configuration((2, 8), "replicate", "dcp", "safe", ["FS1"], ["FS301"], ["third_party/"], "src/utils")
    assert read_configuration(pyproject(tmp_path, text)) == expected


@pytest.mark.parametrize(
    ("lines", "line", "message"),
    [
        ('ddp = "shard"\ntarget_torch = "2.6"', 4, "unknown setting 'target_torch'"),
        ('ddp = "both"', 3, "ddp is 'both', but must be one of shard, replicate, keep"),
        ('select = "FS1"', 3, "select must be a list of strings"),
        ("helpers = true", 3, "helpers must be a string"),
        ("annotate = true", 3, "unknown setting 'annotate'"),
        ("target-torch = 2.6", 3, "target-torch must be a string like '2.6'"),
        ('target-torch = "new"', 3, "not a torch version: 'new'"),
        ('target-torch = "2.3"', 3, "torch 2.3 is too old"),
    ],
)
def test_mistakes_name_file_and_line(tmp_path: Path, lines: str, line: int, message: str) -> None:
    file = pyproject(tmp_path, f"# target\n[tool.to-fsdp2]\n{lines}\n")
    with pytest.raises(UserError) as caught:
        read_configuration(file)
    assert str(caught.value).startswith(f"{file}:{line}: {message}")


def test_broken_toml_names_the_file(tmp_path: Path) -> None:
    file = pyproject(tmp_path, "[tool.to-fsdp2\n")
    with pytest.raises(UserError) as caught:
        read_configuration(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert "line 1" in str(caught.value)


def test_the_nearest_pyproject_within_the_repository(tmp_path: Path) -> None:
    (tmp_path / "repo" / "pkg").mkdir(parents=True)
    outer = pyproject(tmp_path, "")
    assert find_pyproject(tmp_path / "repo" / "pkg") == outer
    (tmp_path / "repo" / ".git").mkdir()
    assert find_pyproject(tmp_path / "repo" / "pkg") is None
    inner = pyproject(tmp_path / "repo", "")
    assert find_pyproject(tmp_path / "repo" / "pkg" / "a.py") == inner


@pytest.mark.parametrize(
    ("dependencies", "requirements", "expected"),
    [
        ("[]", "", None),
        ('["torch"]', "", None),
        ('["torch>=1.13"]', "", (1, 13)),
        ('["torch>=2.8"]', "", (2, 8)),
        ('["torch >= 2.10.1, <3"]', "", (2, 10)),
        ("[\"torch==2.7.1; sys_platform == 'linux'\"]", "", (2, 7)),
        ('["torch~=2.9"]', "torch>=2.7\n", (2, 9)),
        ('["torchvision>=2.9"]', "", None),
        ('["numpy"]', "numpy\ntorch>=2.8  # for fully_shard\n", (2, 8)),
        ('["torch[opt]>=2.9"]', "", (2, 9)),
        ('["torch<2.9"]', "", (2, 8)),
        ('["torch<3.0"]', "", None),
    ],
)
def test_required_torch(
    tmp_path: Path, dependencies: str, requirements: str, expected: tuple[int, int] | None
) -> None:
    pyproject(tmp_path, f"[project]\nname = 'x'\ndependencies = {dependencies}\n")
    (tmp_path / "requirements-train.txt").write_text(requirements)
    assert required_torch(tmp_path) == expected


def test_commands_of_the_project(tmp_path: Path) -> None:
    file = pyproject(tmp_path, "[project.scripts]\ntrain = 'pkg.cli:main'\neval = 'pkg.evaluate'\n")
    assert console_scripts(file) == {"pkg.cli", "pkg.evaluate"}
    assert console_scripts(pyproject(tmp_path, "")) == frozenset()


@pytest.mark.parametrize(
    ("text", "line", "table"),
    [
        ('\n[tool.to_fsdp2]\nddp = "keep"\n', 2, "tool.to_fsdp2"),
        ('[to-fsdp2]\nddp = "keep"\n', 1, "to-fsdp2"),
        ('[tool.tofsdp2]\nddp = "keep"\n', 1, "tool.tofsdp2"),
        ('[tool.to-fsdp]\nddp = "keep"\n', 1, "tool.to-fsdp"),
        ('[tool."to.fsdp2"]\nddp = "keep"\n', 1, "tool.to.fsdp2"),
        ('[tool.ToFSDP2]\nddp = "keep"\n', 1, "tool.ToFSDP2"),
        ('[tool]\nto_fsdp2 = {ddp = "keep"}\n', 1, "tool.to_fsdp2"),
    ],
)
def test_settings_in_a_table_of_a_wrong_name_are_not_passed_over(tmp_path: Path, text: str, line: int, table: str) -> None:
    file = pyproject(tmp_path, text)
    with pytest.raises(UserError) as raised:
        read_configuration(file)
    assert str(raised.value) == f"{file}:{line}: the table [{table}] is not read; the settings belong into [tool.to-fsdp2]"


def test_tables_of_others_are_theirs(tmp_path: Path) -> None:
    file = pyproject(tmp_path, "[tool.fsdp]\nx = 1\n[tool.isort]\ny = 1\n[fsdp2]\nz = 1\n")
    assert read_configuration(file) == Configuration()


@pytest.mark.parametrize("key", ["select", "ignore"])
def test_unknown_rules_are_named_with_their_line(tmp_path: Path, key: str) -> None:
    file = pyproject(tmp_path, f'[tool.to-fsdp2]\nddp = "keep"\n{key} = ["FS1", "FS30l"]\n')
    with pytest.raises(UserError, match=f"pyproject.toml:3: {key}: no rule is called 'FS30l'; did you mean FS3"):
        read_configuration(file)
