"""The module of helpers: where it goes, what it holds, and what becomes of one that is there already."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Real = Callable[..., tuple[int, str, str]]

WRAP = """\
from torch.nn.parallel import DistributedDataParallel as DDP


def wrap(net, options):
    return DDP(net, **options)
"""
SAVE = "import torch\n" + WRAP.replace("return DDP(net, **options)", "torch.save(DDP(net, **options).state_dict(), 'x')")
MODULE = "fsdp2_helpers.py"


def names(file: Path) -> set[str]:
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "wrap.py").write_text(WRAP)
    return tmp_path


def test_it_lies_beside_what_uses_it(real: Real, program: Path) -> None:
    assert real("apply")[0] == 0
    assert "shard_like_ddp" in names(program / MODULE)
    assert "from fsdp2_helpers import shard_like_ddp\n" in (program / "wrap.py").read_text()
    assert real("diff") == (0, "", "2 files, 0 to change, 0 safe, 0 review, 0 manual, 0 failed\n")


def test_it_goes_where_the_user_wants_it(real: Real, program: Path) -> None:
    (program / "lib" / "utils").mkdir(parents=True)
    assert real("apply", "--helpers", "lib/utils")[0] == 0
    assert (program / "lib" / "utils" / MODULE).is_file()
    assert not (program / MODULE).exists()
    assert "from lib.utils.fsdp2_helpers import shard_like_ddp\n" in (program / "wrap.py").read_text()


def test_the_configuration_says_where_from_its_own_folder(
    real: Real, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program / "lib").mkdir()
    (program / "pyproject.toml").write_text("[tool.to-fsdp2]\nhelpers = 'lib'\n")
    monkeypatch.chdir(program / "lib")
    assert real("apply", "..")[0] == 0
    assert (program / "lib" / MODULE).is_file()


def test_a_later_run_extends_it(real: Real, program: Path) -> None:
    real("apply")
    before = names(program / MODULE)
    (program / "save.py").write_text(SAVE)
    assert real("apply", "save.py", "wrap.py")[0] == 0
    after = names(program / MODULE)
    assert before < after
    assert "from fsdp2_helpers import " in (program / "save.py").read_text()
    assert real("diff")[0] == 0


def test_a_name_that_is_imported_already_is_used(real: Real, program: Path) -> None:
    real("apply")
    text = (program / "wrap.py").read_text().replace("import shard_like_ddp", "import shard_like_ddp as shard")
    (program / "wrap.py").write_text(text.replace("return shard_like_ddp", "return shard") + WRAP.replace("wrap", "other"))
    assert real("apply")[0] == 0
    assert (program / "wrap.py").read_text().count("return shard(net, **options)\n") == 2
    assert (program / "wrap.py").read_text().count("fsdp2_helpers") == 1


def test_a_module_of_that_name_by_somebody_else_is_left_alone(real: Real, program: Path) -> None:
    (program / MODULE).write_text("def mine():\n    pass\n")
    assert real("scan", "--helpers", ".")[0] == 64
    assert real("apply", "wrap.py")[0] == 0
    assert (program / MODULE).read_text() == "def mine():\n    pass\n"
    assert "shard_like_ddp" in names(program / "wrap.py")


def test_one_by_another_version_is_named(real: Real, program: Path) -> None:
    real("apply")
    assert "another version" not in real("check")[2]
    file = program / MODULE
    file.write_text(file.read_text().replace("    return module\n", "    return  module\n"))
    assert f"{MODULE} was changed since to-fsdp2 wrote it" in real("check")[2]
    assert real("apply")[0] == 0
    assert "    return  module\n" in file.read_text()


def by_another_version(file: Path, before: str, after: str) -> None:
    """Makes a module what a version of the tool with another text of its helpers would have written."""
    head, _, code = file.read_text().partition("\n\n\n")
    assert before in code
    code = code.replace(before, after)
    digest = hashlib.sha256(code.encode()).hexdigest()[:12]
    file.write_text(re.sub(r"\(hash \w+\)", f"(hash {digest})", head) + "\n\n\n" + code)


def test_one_by_another_version_is_written_anew(real: Real, program: Path) -> None:
    real("apply")
    file, wrapped = program / MODULE, (program / "wrap.py").read_text()
    now = file.read_text()
    by_another_version(file, "    return module\n", "    return (module)\n")
    code, out, err = real("check", "--select", "FS991")
    assert code == 1 and "FS991" in out and "apply writes it anew" in err
    code, out, _ = real("diff")
    assert code == 1 and "-    return (module)\n+    return module\n" in out
    assert real("apply")[0] == 0
    assert (file.read_text(), (program / "wrap.py").read_text()) == (now, wrapped)
    assert real("diff")[0] == real("check")[0] == 0


@pytest.mark.parametrize("other", ["def return_no_views(block: Any)", "def return_views(unit: Any)"])
def test_but_not_where_callers_would_miss_something(real: Real, program: Path, other: str) -> None:
    real("apply")
    file = program / MODULE
    by_another_version(file, "def return_no_views(unit: Any)", other)
    old = file.read_text()
    assert real("apply")[0] == 0
    assert file.read_text() == old
    assert "with functions that this one has no more" in real("scan")[2]


def test_a_file_imports_it_as_it_is_imported_itself(real: Real, tmp_path: Path) -> None:
    """Neither a namesake of the standard library nor an import for a test of its own make a module a script."""
    package = tmp_path / "app" / "utils"
    package.mkdir(parents=True)
    (package / "logging.py").write_text(SAVE)
    (package / "other.py").write_text("import logging\n" + SAVE)
    (package / "third.py").write_text("import torch\n\nONES = torch.ones(1)\n")
    by_itself = "\n\nif __name__ == '__main__':\n    from third import ONES\n\n    print(ONES)\n"
    (package / "wrap.py").write_text(WRAP + by_itself)
    uses = "".join(f"import app.utils.{name}\n" for name in ("logging", "other", "wrap"))
    (tmp_path / "train.py").write_text(uses + "\nif __name__ == '__main__':\n    print(app)\n")
    assert real("apply")[0] == 0
    (helpers,) = tmp_path.rglob(MODULE)
    assert helpers.parent == package
    for name in ("logging", "other"):
        assert "from .fsdp2_helpers import" in (package / f"{name}.py").read_text()
    assert "from app.utils.fsdp2_helpers import" in (package / "wrap.py").read_text()


SCANS = (
    "import importlib\nimport pathlib\n\nfor path in sorted(pathlib.Path(__file__).parent.glob('*_part.py')):\n"
    "    importlib.import_module(f'{__name__}.{path.stem}')\n"
)


def written(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_packages_that_import_whatever_lies_in_them_still_import_each_other(real: Real, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    written(tmp_path, {
        "train.py": "import pkg.models\n",
        "pkg/__init__.py": "from .archs import build\n",
        "pkg/archs/__init__.py": SCANS + "\n\ndef build():\n    pass\n",
        "pkg/util.py": "NAME = 'pkg'\n",
        "pkg/archs/one_part.py": "from pkg.util import NAME\n" + WRAP,
        "pkg/models/__init__.py": "from pkg.archs import build\n" + SCANS,
        "pkg/models/base_part.py": "from pkg.archs import build\n" + WRAP,
        "pkg/models/other_part.py": "from pkg.models.base_part import wrap\n" + WRAP.replace("def wrap", "def wrap_again"),
    })  # fmt: skip
    assert real("apply")[0] == 0
    ran = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-1000:]


def test_a_folder_that_is_called_like_a_package_from_elsewhere_is_no_place(real: Real, tmp_path: Path) -> None:
    written(tmp_path, {
        "tools/sam/deployment/onnx/__init__.py": "",
        "tools/sam/deployment/onnx/run.py": "import onnx\n",
        "pkg/export.py": "import onnx\n" + WRAP,
        "pkg/train.py": "from .export import wrap\n" + WRAP.replace("def wrap", "def wrap_again"),
        "pkg/__init__.py": "",
    })  # fmt: skip
    assert real("apply")[0] == 0
    assert "from .fsdp2_helpers import" in (tmp_path / "pkg" / "export.py").read_text()


def test_what_lies_below_the_folder_of_a_script_imports_it_as_the_script_does(real: Real, tmp_path: Path) -> None:
    folder = tmp_path / "src"
    (folder / "data").mkdir(parents=True)
    for package in (folder, folder / "data"):
        (package / "__init__.py").write_text("")
    (folder / "data" / "names.py").write_text("NAME = 'x'\n")
    (folder / "data" / "saves.py").write_text("from .names import NAME\n" + SAVE.replace("wrap(", "save("))
    (folder / "more.py").write_text(WRAP)
    main = "from more import wrap\nfrom data.saves import save\n\nif __name__ == '__main__':\n    print(wrap, save)\n"
    (folder / "main.py").write_text(main)
    assert real("apply")[0] == 0
    assert subprocess.run([sys.executable, "main.py"], cwd=folder, check=False).returncode == 0


def test_a_module_of_a_package_imports_it_from_where_its_own_imports_climb_to(real: Real, tmp_path: Path) -> None:
    """Though a script lies there too, which has that folder on its path."""
    folder = tmp_path / "pkg"
    (folder / "sub").mkdir(parents=True)
    for package in (folder, folder / "sub"):
        (package / "__init__.py").write_text("")
    (folder / "names.py").write_text("NAME = 'x'\n")
    (folder / "sub" / "saves.py").write_text("from ..names import NAME\n" + SAVE.replace("wrap(", "save("))
    (folder / "convert.py").write_text(WRAP + "\n\nif __name__ == '__main__':\n    print(wrap)\n")
    assert real("apply")[0] == 0
    command = [sys.executable, "-c", "from pkg.sub.saves import save"]
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0
    assert subprocess.run([sys.executable, "pkg/convert.py"], cwd=tmp_path, check=False).returncode == 0


@pytest.mark.parametrize("command", ["tools/train.py", "-m tools.train"])
def test_a_script_imports_what_lies_beside_it_as_it_is_run(real: Real, tmp_path: Path, command: str) -> None:
    """By its path, unless something says that it is run as a module: its own folder is on Python's path, not the root."""
    written(tmp_path, {
        "pkg/__init__.py": "",
        "pkg/names.py": "NAME = 'x'\n",
        "pkg/states.py": "from .names import NAME\n" + SAVE.replace("wrap(", "save("),
        "tools/train.py": "from pkg.states import save\n" + WRAP + "\n\nif __name__ == '__main__':\n    print(save, wrap)\n",
        "run.sh": f"python {command}\n",
    })  # fmt: skip
    assert real("apply")[0] == 0
    path = {"PYTHONPATH": str(tmp_path)} if command == "-m tools.train" else {}
    installed = f"import sys; sys.path.append({str(tmp_path / 'lib')!r})"
    (tmp_path / "lib").mkdir()
    (tmp_path / "pkg").rename(tmp_path / "lib" / "pkg")  # as one that is installed
    (tmp_path / "tools" / "train.py").write_text(installed + "\n" + (tmp_path / "tools" / "train.py").read_text())
    done = subprocess.run([sys.executable, *command.split()], cwd=tmp_path, env={**os.environ, **path}, check=False)
    assert done.returncode == 0


def test_a_script_beside_modules_of_a_package_imports_it_as_these_are_imported(real: Real, tmp_path: Path) -> None:
    """Also where nothing marks the folder: run as a module it has the package's root on the path, by its path as well."""
    script = "from pkg.names import NAME\n" + WRAP + "\n\nif __name__ == '__main__':\n    print(NAME, wrap)\n"
    written(tmp_path, {
        "pkg/__init__.py": "",
        "pkg/names.py": "NAME = 'x'\n",
        "pkg/train/saves.py": SAVE.replace("wrap(", "save("),
        "pkg/train/both.py": "from pkg.train.saves import save\n\nif __name__ == '__main__':\n    print(save)\n",
        "pkg/train/run.py": script,
    })  # fmt: skip
    assert real("apply")[0] == 0
    for command in (["-m", "pkg.train.run"], ["pkg/train/run.py"]):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        assert subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, check=False).returncode == 0
