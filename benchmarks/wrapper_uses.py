"""How often code still makes FSDP1 or DDP wrappers: their classes called, passed on, assigned or subclassed.

Names are resolved by the imports of their file, scopes are not told apart. Type tests, annotations and reads of class
members (`FSDP.state_dict_type`) make no wrapper and do not count.
"""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

CLASSES = ("FullyShardedDataParallel", "DistributedDataParallel")
_ASKING = ("isinstance", "issubclass", "type", "cast", "typing.cast")


def wrapper_uses(tree: Path) -> int:
    """The number of such uses in a folder, outside tests; files that do not parse have none."""
    files = [file for file in tree.rglob("*.py") if not _is_test(file.relative_to(tree))]
    return sum(_uses_of(module) for file in files if (module := parse(file)))


def parse(file: Path) -> ast.Module | None:
    """The syntax tree, or nothing if the file is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def _is_test(file: Path) -> bool:
    return file.stem.startswith("test_") or file.stem.endswith("_test") or not {"test", "tests"}.isdisjoint(file.parts)


def _uses_of(module: ast.Module) -> int:
    visitor = _Uses(_imported_names(module))
    visitor.visit(module)
    return visitor.count


def _imported_names(module: ast.Module) -> dict[str, str]:
    """Full names by the names that stand for them."""
    names: dict[str, str] = {}
    for node in ast.walk(module):
        match node:
            case ast.Import(names=aliases):
                names |= {alias.asname: alias.name for alias in aliases if alias.asname}
            case ast.ImportFrom(module=str(origin), names=[ast.alias(name="*")], level=0):
                names |= {name: f"{origin}.{name}" for name in CLASSES}
            case ast.ImportFrom(module=str(origin), names=aliases, level=0):
                names |= {alias.asname or alias.name: f"{origin}.{alias.name}" for alias in aliases}
            case _:
                pass
    return names


class _Uses(ast.NodeVisitor):
    def __init__(self, names: dict[str, str]) -> None:
        self.names = names
        self.count = 0

    def visit_Name(self, node: ast.Name) -> None:
        self.count += self._is_class(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if self._is_class(node):
            self.count += 1
        elif not self._is_class(node.value):
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if self._full_name(node.func) not in _ASKING:
            self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Nothing: `type(model) is DDP` makes no wrapper."""

    def visit_arg(self, node: ast.arg) -> None:
        """Nothing: all that it holds is an annotation."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for part in (*node.decorator_list, node.args, *node.body):
            self.visit(part)

    visit_AsyncFunctionDef = visit_FunctionDef

    def _is_class(self, node: ast.expr) -> bool:
        name = self._full_name(node)
        return name.startswith("torch.") and name.endswith(CLASSES)

    def _full_name(self, node: ast.expr) -> str:
        match node:
            case ast.Name(id=name):
                return self.names.get(name, name)
            case ast.Attribute(value=value, attr=name):
                return f"{self._full_name(value)}.{name}"
            case _:
                return "?"
