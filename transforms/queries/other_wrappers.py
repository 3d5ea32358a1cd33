"""Wrappers that stay, whose `.module` is still one."""

from __future__ import annotations

import ast

from ..facts.symbols import WRAPPERS
from .file import File
from .program import Program


def makes_other_wrappers(program: Program) -> bool:
    """Whether some code puts models into ``nn.DataParallel`` or a library's wrapper, as apex's, or hands the class on."""
    return program.once(_Found).makes


class _Found:
    def __init__(self, program: Program) -> None:
        files = (program.file(i) for i in program.relevant_files() if "DataParallel" in program.text(program.facts[i].path))
        self.makes = any(_is_made(file, n) for file in files for n in file.nodes(ast.Name, ast.Attribute))


def _is_made(file: File, node: ast.expr) -> bool:
    """Whether an expression is the class, and not in a test of what something is."""
    name = file.external(node) or ""
    if not isinstance(getattr(node, "ctx", None), ast.Load) or not name.endswith("DataParallel") or name in WRAPPERS:
        return False
    around = direct = file.parents[node]
    while isinstance(around, (ast.Tuple, ast.List, ast.Set, ast.BinOp)):
        around = file.parents[around]
    called = around.func.id if isinstance(around, ast.Call) and isinstance(around.func, ast.Name) else ""
    is_test = called in ("isinstance", "issubclass") or isinstance(around, ast.Compare)
    is_listed = around is not direct and isinstance(around, ast.Assign)  # for tests, most often
    return not is_test and not is_listed and not isinstance(around, (ast.AnnAssign, ast.arg))
