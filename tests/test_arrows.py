"""Which folder may import which: one way only."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("migrate", "transforms", "equivalence", "corpus")
SHARED = ("equivalence.git_apart", "equivalence.small_files")
"""What all commands use of the harness: these modules need the standard library alone."""
MAY_IMPORT = {
    "migrate": {"transforms", "equivalence", "corpus"},
    "transforms": set(),
    "equivalence": {"transforms"},
    "corpus": set(),
}


def modules(folder: str) -> list[Path]:
    outside = ("cases", "demo")
    return [
        path
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not (folder == "corpus" and path.relative_to(ROOT).parts[1] in outside)
    ]


def imports(path: Path) -> list[tuple[str, bool]]:
    """(dotted name from the root, whether it runs on import of the module) of every import."""
    package = list(path.relative_to(ROOT).parts[:-1])
    tree = ast.parse(path.read_text())
    lazy = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    found: list[tuple[str, bool]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) not in lazy) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            # `from .. import equivalence` names the folder among what is imported.
            found += [(f"{module}.{alias.name}".strip("."), id(node) not in lazy) for alias in node.names]
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_arrows(folder: str) -> None:
    assert modules(folder)
    for path in modules(folder):
        for name, _ in imports(path):
            top = name.split(".")[0]
            assert top != "to_fsdp2", f"{path}: imports across folders are relative"
            if top in FOLDERS and top != folder:
                assert top in MAY_IMPORT[folder], f"{path} imports {name}"


FLOORS = (
    "findings", "text", "facts", "flow", "queries", "sites", "hidden", "guarded_uses", "guarded", "behind_guards", "rewrites",
    "migration", "state_functions", "helper_features", "reachable_sites", "selection", "written_stops", "writing", "rule",
    "contract", "suppression_findings", "rules", "engine",
)  # fmt: skip
"""The parts of ``transforms/``, from the ground up; ``helpers/`` is text to them."""


def test_floors_of_transforms_import_downwards() -> None:
    parts = {path.relative_to(ROOT / "transforms").with_suffix("").parts[0] for path in modules("transforms")}
    assert parts == {*FLOORS, "helpers", "__init__"}
    for path in modules("transforms"):
        floor = path.relative_to(ROOT / "transforms").with_suffix("").parts[0]
        if floor in FLOORS:
            for name, at_once in imports(path):
                below = name.removeprefix("transforms.").split(".")[0]
                if name.startswith("transforms.") and at_once and not _for_types_alone(path, name):
                    assert below == floor or FLOORS.index(below) < FLOORS.index(floor), f"{path} imports {name}"


def test_modules_of_transforms_import_in_no_circle() -> None:
    graph = {_module(path): set[str]() for path in modules("transforms")}
    for path in modules("transforms"):
        for name, at_once in imports(path):
            target = name if name in graph else name.rpartition(".")[0]
            if at_once and target in graph and target != _module(path) and not _for_types_alone(path, name):
                graph[_module(path)].add(target)
    order = tuple(TopologicalSorter(graph).static_order())  # raises CycleError
    assert len(order) == len(graph)


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def _for_types_alone(path: Path, name: str) -> bool:
    """Whether an import stands under ``if TYPE_CHECKING``: the types of a pair that knows each other."""
    tests = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If)]
    guarded = [node for test in tests if "TYPE_CHECKING" in ast.dump(test.test) for node in test.body]
    return name.rpartition(".")[2] in {alias.name for node in guarded for alias in getattr(node, "names", ())}


def test_what_only_some_commands_need_is_imported_by_them_alone() -> None:
    for path in modules("migrate"):
        for name, at_once in imports(path):
            top = name.split(".")[0]
            shared = name.rpartition(".")[0] in SHARED
            assert shared or not (at_once and top in ("equivalence", "corpus", "torch")), f"{path} imports {name}"


def test_what_runs_in_a_training_process_imports_nothing_of_ours() -> None:
    folder = ROOT / "equivalence" / "inject"
    own = {path.stem for path in folder.iterdir()}
    for path in sorted(folder.rglob("*.py")):
        for name, at_once in imports(path):
            top = name.removeprefix("equivalence.inject.").split(".")[0]
            assert top not in (*FOLDERS, "to_fsdp2"), f"{path} imports {name}"
            if at_once:
                assert top in {*sys.stdlib_module_names, "torch", *own}, f"{path} imports {name}"


@pytest.mark.parametrize("module", ["migrate.__main__", "transforms.engine", "transforms.rule"])
def test_the_base_install_never_loads_torch(module: str) -> None:
    program = f"""
import sys
import to_fsdp2.{module}
loaded = {{name.split(".")[0] for name in sys.modules}} | {{".".join(name.split(".")[:2]) for name in sys.modules}}
print(sorted(loaded & {{"torch", "numpy", "transformers", "to_fsdp2.corpus"}}))
print(*sorted(name for name in sys.modules if name.startswith("to_fsdp2.equivalence.")))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded, of_the_harness = result.stdout.splitlines()
    assert loaded == "[]"
    assert set(of_the_harness.split()) <= {f"to_fsdp2.{name}" for name in SHARED}
