"""How generated code refers to a torch symbol in a given file: in the file's own style."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ..analysis.symbols import canonical
from ..view import FileView

_IN_FULL = (
    "torch", "torch.nn", "torch.nn.utils", "torch.nn.parallel", "torch.amp", "torch.cuda", "torch.optim",
    "torch.random",
)  # fmt: skip
"""Modules whose members people write in full after ``import torch``."""


def spelling(view: FileView, symbol: str, node: ast.AST) -> str:
    """How code at ``node`` refers to a symbol.

    A name that is imported already keeps its alias; a file that imports the module under a name (``fsdp.…``,
    ``dist.…``, ``torch.…``) goes on using it; otherwise the bare name, which `imports.mend_imports` imports. Where
    the file has given that name to something else, the full path.
    """
    module, _, name = symbol.rpartition(".")
    statements = visible_imports(view, node)
    for statement in statements:
        for alias in statement.names:
            bound = alias.asname or alias.name
            if isinstance(statement, ast.ImportFrom):
                full = "" if statement.level else canonical(f"{statement.module}.{alias.name}")
                if full == canonical(symbol):
                    return bound
                if full == module and module != "torch":
                    return f"{bound}.{name}"
            elif canonical(alias.name) == module and (alias.asname or "." not in alias.name):
                return f"{bound}.{name}"
    if module in _IN_FULL and _imports_torch(statements):
        return symbol
    short = f"dist.{name}" if module == "torch.distributed" else name
    root = short.partition(".")[0]
    bound = {alias.asname or alias.name.partition(".")[0] for statement in statements for alias in statement.names}
    return symbol if root in bound or root in view.own_names else short


def import_of(symbol: str, written: str) -> tuple[str, str] | None:
    """(module, name) to import for a spelling; name ``""`` for ``import module``, None when torch alone is enough."""
    module, _, name = symbol.rpartition(".")
    if written == symbol:
        return ("torch", "") if module in _IN_FULL else (module, "")
    if written == f"dist.{name}":
        return module, "as dist"
    return (module, name) if written == name else None


def visible_imports(view: FileView, node: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    """Import statements of the module and of the functions around a node, innermost scope first."""
    scopes: list[ast.AST] = [a for a in view.ancestors(node) if isinstance(a, (ast.FunctionDef, ast.AsyncFunctionDef))]
    scopes.append(view.tree)
    found = [s for s in all_imports(view) if (view.function(s) or view.tree) in scopes]
    return sorted(found, key=lambda statement: scopes.index(view.function(statement) or view.tree))


def all_imports(view: FileView) -> list[ast.Import | ast.ImportFrom]:
    """Every import statement of a file."""
    return view.nodes(ast.Import, ast.ImportFrom)


def _imports_torch(statements: list[ast.Import | ast.ImportFrom]) -> bool:
    return any(
        isinstance(s, ast.Import) and any(not a.asname and a.name.partition(".")[0] == "torch" for a in s.names)
        for s in statements
    )


def imported_names(statements: Iterable[ast.AST]) -> set[tuple[str, str]]:
    """(module as written, name) of everything that statements import; no module for ``import name``."""
    found: set[tuple[str, str]] = set()
    for node in statements:
        if isinstance(node, ast.Import):
            found.update(("", alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found.update((module, alias.name) for alias in node.names)
    return found


def quoted(view: FileView, text: str) -> str:
    """A string literal in the quotes that the file uses more often."""
    single = view.source.text.count("'") > view.source.text.count('"')
    return f"'{text}'" if single else f'"{text}"'
