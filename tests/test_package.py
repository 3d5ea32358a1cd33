"""The wheel holds what the folders hold: subpackages are listed by name, so one can be forgotten."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("migrate", "transforms", "equivalence", "corpus")
PARENT = "package"
"""The folder whose files lie in the package itself."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy, for a build leaves folders behind."""
    pytest.importorskip("setuptools", "77", reason="building a wheel without a download needs setuptools")
    folder = tmp_path_factory.mktemp("build")
    for name in (PARENT, *FOLDERS):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    build = "from setuptools import build_meta; build_meta.build_wheel('wheel')"
    (folder / "wheel").mkdir()
    subprocess.run([sys.executable, "-c", build], cwd=folder, check=True, capture_output=True)
    [file] = (folder / "wheel").glob("*.whl")
    return zipfile.ZipFile(file)


def test_the_wheel_holds_every_file_of_the_folders(wheel: zipfile.ZipFile) -> None:
    shipped = {name for name in wheel.namelist() if name.startswith("to_fsdp2/")}
    present = {
        f"to_fsdp2/{path.relative_to(ROOT).as_posix()}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    present |= {f"to_fsdp2/{path.name}" for path in (ROOT / PARENT).iterdir() if path.is_file()}
    assert shipped == present
    assert "to_fsdp2/py.typed" in shipped


def test_nothing_else_is_installed(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert len(tops) == 2
    assert "to_fsdp2" in tops
    [metadata] = tops - {"to_fsdp2"}
    assert b"to-fsdp2 = to_fsdp2.migrate.__main__:main" in wheel.read(f"{metadata}/entry_points.txt")
