"""Refactorings find places, keep what a program does, and leave alone what they could change."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from pathlib import Path
from random import Random

import pytest
from sample_program import FILES, SCRIPTS, STAND_INS

from benchmarks.metamorphic.composition import compose, done, places
from benchmarks.metamorphic.kinds import KINDS
from benchmarks.metamorphic.project import Project

MOST = 5


def sample() -> Project:
    return Project({path: text for path, text in FILES.items() if path not in STAND_INS}, SCRIPTS)


def printed(project: Project, folder: Path) -> str:
    """What the scripts of a program print, and the file that it writes; each runs in a fork without the real torch."""
    project.write(folder)
    for path in STAND_INS:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(FILES[path])
    return "".join(_output(folder, script) for script in sorted(project.scripts)) + (folder / "model.txt").read_text()


def _output(folder: Path, script: str) -> str:
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            sys.stdout = sys.stderr = (folder / "output").open("w")
            for name in [name for name in sys.modules if name.split(".")[0] in ("torch", "helpers")]:
                del sys.modules[name]
            os.chdir(folder)
            sys.argv, sys.path[0:0] = [script], [str(folder)]
            sys.dont_write_bytecode = True
            runpy.run_path(str(folder / script), run_name="__main__")
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, (folder / "output").read_text()
    return (folder / "output").read_text()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    text = printed(sample(), tmp_path_factory.mktemp("sample"))
    assert "loss" in text
    return text


@pytest.mark.parametrize("kind", KINDS)
def test_a_refactoring_keeps_the_meaning(kind: str, tmp_path: Path, expected: str) -> None:
    found = places(KINDS[kind], sample(), 0)
    assert found, "it has no place in the sample"
    drawn = Random(0).sample(range(len(found)), min(MOST, len(found)))
    made = 0
    for number in drawn:
        after = done(KINDS[kind], sample(), 0, number)
        if after is None:
            continue
        made += 1
        assert after != sample(), found[number]
        assert printed(after, tmp_path / str(number)) == expected, found[number]
    assert made


@pytest.mark.parametrize("seed", range(4))
def test_refactorings_compose(seed: int, tmp_path: Path, expected: str) -> None:
    after, steps = compose(sample(), Random(seed), 10)
    assert len(steps) == 10
    assert printed(after, tmp_path) == expected, steps


def test_a_seed_makes_the_same_variant_again_and_another_seed_another() -> None:
    (one, _), (again, _), (other, _) = (compose(sample(), Random(seed), 4) for seed in (1, 1, 2))
    assert one.files == again.files != other.files


UNSOUND = {
    "names that are looked at": ("rename_local", "def f():\n    x = 1\n    return locals()\n"),
    "a name that a comprehension has too": ("rename_local", "def f(xs):\n    x = 1\n    return x, [x for x in xs]\n"),
    "a global that a function rebinds": (
        "extract_function",
        "x = 0\ndef bump():\n    global x\n    x += 1\ndef f():\n    pass\nfor i in (1, 2):\n    print(x)\n",
    ),
    "statements that return": ("extract_function", "def f(x):\n    if x:\n        return g(x)\n"),
    "a name that may not be bound": (
        "extract_function",
        "def f(x):\n    if x:\n        y = 1\n    while x:\n        g(y)\n        break\n",
    ),
    "a loop that goes on early": (
        "while_counted",
        "def f():\n    for i in range(3):\n        if i:\n            continue\n        g(i)\n",
    ),
    "a variable that outlives its loop": ("while_counted", "def f():\n    for i in range(3):\n        g(i)\n    return i\n"),
    "a call that comes later": ("bound_method", "def f(a, b):\n    return g() or a.m()\n"),
    "a value that the call before may change": ("keywords_in_variable", "def f(a):\n    return g(a.pop(), k=a.pop())\n"),
    "a name that another file imports": ("import_dotted", "from a.b import N\nfrom . import N as M\n__all__ = ['N']\nN()\n"),
    "a variable that is bound again": ("packed_in_tuple", "def f(a):\n    x = a\n    x = g(x)\n    for i in a:\n        x = i\n"),
    "a function that is passed on": ("rename_parameter", "def f(x):\n    return x\nmap(f, [])\n"),
    "an attribute that a subclass has": (
        "rename_attribute",
        "class A:\n    def __init__(self):\n        self.v = 1\nclass B(A):\n    pass\n",
    ),
    "code that asks for its module": ("extract_to_module", "def f():\n    if __name__ == '__main__':\n        g()\n"),
    "a parameter that every method has": ("parameters_in_namespace", "def f(self, x):\n    return x\nf(1, 2)\n"),
    "an `if` with something after it": ("guard_by_return", "def f(x):\n    if x:\n        g()\n    h()\n"),
}


@pytest.mark.parametrize("case", UNSOUND)
def test_a_refactoring_stays_away(case: str) -> None:
    kind, text = UNSOUND[case]
    assert places(KINDS[kind], Project({"train.py": text}, frozenset({"train.py"})), 0) == []


def test_a_function_that_another_file_imports_stays_at_the_top() -> None:
    files = {"train.py": "from parts import f\n", "parts.py": "def f():\n    return 1\nf()\n"}
    for kind in ("function_into_class", "function_into_object"):
        assert places(KINDS[kind], Project(files, frozenset({"train.py"})), 0) == []
        assert places(KINDS[kind], Project({"parts.py": files["parts.py"]}, frozenset({"parts.py"})), 0)
