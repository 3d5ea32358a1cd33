"""Imports are found in all their spellings, and files are connected through any number of others."""

from __future__ import annotations

import pytest
from to_fsdp2.migrate.imports import connected, imported_modules, package_of


@pytest.mark.parametrize(
    ("text", "package", "expected"),
    [
        ("import os\n", "", {"os"}),
        ("import a.b.c as d, e\n", "", {"a", "a.b", "a.b.c", "e"}),
        ("from a.b import c as d, e\n", "", {"a.b", "a.b.c", "a.b.e"}),
        ("from a import (  # why (\n    b,  # c)\n    d,\n)\n", "", {"a", "a.b", "a.d"}),
        ("from a import b, \\\r\n    c\n", "", {"a", "a.b", "a.c"}),
        ("from \\\n  a \\\n  import b\n", "", {"a", "a.b"}),
        ("from . import x\n", "pkg.sub", {".pkg.sub", ".pkg.sub.x"}),
        ("from .. import x\n", "pkg.sub", {".pkg", ".pkg.x"}),
        ("from . import x\n", "", {".", ".x"}),
        ("from .m import x\n", "pkg", {".pkg.m", ".pkg.m.x"}),
        ("from ..m import x\n", "pkg.sub", {".pkg.m", ".pkg.m.x"}),
        ("from.m import*\n", "pkg", {".pkg.m"}),
        ("try: import a\nexcept ImportError: pass\n", "", {"a"}),
        ("x = 1; import a; from b import c\n", "", {"a", "b", "b.c"}),
        ("def f():\n\timport a  # why\n", "", {"a"}),
        ("m = importlib.import_module('a.b')\n", "", {"a.b"}),
        ("m = importlib.import_module(\n    '.b', __package__)\n", "pkg", {".pkg.b"}),
        ("m = __import__('a')\n", "", {"a"}),
        ("important = 1\nreimport(x)\n", "", set()),
        ("import a\rimport b\r", "", {"a", "b"}),
    ],
)
def test_spellings(text: str, package: str, expected: set[str]) -> None:
    assert imported_modules(text.encode(), package) == expected


def test_imports_that_are_commented_out_end() -> None:
    """Patterns that may match a comment in two ways would try all of them: never to end, with forty lines."""
    text = "# from a import (\n" + "#     b,\n" * 40 + "# print(1)\nimport e\n"
    assert imported_modules(text.encode(), "") >= {"a", "e"}


def reached(files: dict[str, str], hits: set[str]) -> set[str]:
    imports = {label: imported_modules(text.encode(), package_of(label)) for label, text in files.items()}
    return connected(imports, hits)


def test_a_relay_without_a_token_is_connected() -> None:
    files = {
        "wrap.py": "",
        "relay.py": "import wrap",
        "main.py": "from relay import go",
        "leaf.py": "",
        "user.py": "import leaf, main",
        "alone.py": "import numpy",
        "other.py": "import alone",
    }
    assert reached(files, {"wrap.py"}) == {"wrap.py", "relay.py", "main.py", "leaf.py", "user.py"}


def test_packages_sources_in_src_and_submodules() -> None:
    files = {
        "src/pkg/__init__.py": "",
        "src/pkg/model.py": "",
        "src/pkg/sub/__init__.py": "from ..model import Net",
        "scripts/train.py": "from pkg.sub import go",
        "scripts/by_package.py": "import pkg.model",
        "scripts/submodule.py": "from pkg import model",
        "tools/unrelated.py": "import pkgs",
    }
    assert reached(files, {"src/pkg/model.py"}) == set(files) - {"tools/unrelated.py"}


def test_without_hits_nothing_is_connected() -> None:
    assert reached({"a.py": "import b", "b.py": ""}, set()) == set()


def test_a_relative_import_leads_to_one_file() -> None:
    files = {"pkg/a.py": "from .b import go", "pkg/b.py": "", "other/pkg/b.py": ""}
    assert reached(files, {"pkg/a.py"}) == {"pkg/a.py", "pkg/b.py"}


def test_names_of_the_standard_library_are_its_own_but_beside_a_script_and_above_outside_packages() -> None:
    files = {
        "logging.py": "",
        "pkg/__init__.py": "",
        "pkg/copy.py": "",
        "pkg/sub/__init__.py": "",
        "pkg/sub/queue.py": "",
        "pkg/sub/a.py": "import copy, logging, queue, random",
        "pkg/sub/b.py": "from .. import copy",
        "elsewhere/random.py": "",
    }
    assert reached(files, {"pkg/sub/a.py"}) == {"pkg/sub/a.py", "logging.py", "pkg/sub/queue.py"}
    assert "pkg/copy.py" in reached(files, {"pkg/sub/b.py"})


def test_the_first_name_may_be_that_of_the_root_folder() -> None:
    files = {"train.py": "import kit.util.misc as misc\n", "util/misc.py": "", "lib/util/misc.py": "", "other.py": ""}
    assert reached(files, {"train.py"}) == {"train.py", "util/misc.py"}
