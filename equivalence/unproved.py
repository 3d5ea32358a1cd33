"""Functions and branches of the new side that the change touched and the run did not enter."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from .changes import Changes

MOST = 6


def unproved(changes: Changes, lines: dict[str, set[int]]) -> str | None:
    """A sentence that names them by file, None if everything was entered. `lines`: executed lines by absolute path."""
    found: list[str] = []
    for file in changes.files:
        if file.new_path is None or not file.new:
            continue
        changed = {line for statement in file.new for line in statement.lines}
        missed = _not_entered(file.new_path, changed, lines.get(str(file.new_path), set()))
        found += [f"in {file.name} {missed}"] if missed else []
    return f"the runs prove nothing about what they did not enter: {'; '.join(found)}" if found else None


def _not_entered(path: Path, changed: set[int], ran: set[int]) -> str:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
    except (SyntaxError, ValueError):
        return ""
    functions: list[str] = []
    branches: list[str] = []
    for name, line in _in_block(tree.body, changed, ran):
        if name is None:
            branches.append(str(line))
        else:
            functions.append(name)
    texts = [_listed("function", functions)] if functions else []
    texts += [_listed("branch", branches)] if branches else []
    return " and ".join(texts)


def _listed(kind: str, names: list[str]) -> str:
    """`the function f`, `3 functions (f, g, h)`, `9 branches (at lines 3, 7, 12, 15, 20, 31, …)`."""
    if len(names) == 1:
        return f"the function {names[0]}" if kind == "function" else f"the branch at line {names[0]}"
    more = ", …" if len(names) > MOST else ""
    listed = ", ".join(names[:MOST]) + more
    return f"{len(names)} functions ({listed})" if kind == "function" else f"{len(names)} branches (at lines {listed})"


def _in_block(body: list[ast.stmt], changed: set[int], ran: set[int]) -> Iterator[tuple[str | None, int]]:
    """Names of functions, and None for branches, with their lines."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inside = _code(statement.body)
            if inside & changed and not inside & ran:
                yield statement.name, statement.lineno
                continue
        for block in _blocks(statement):
            inside = _code(block)
            # A class or a function is entered by what is in it, a branch by its condition.
            reached = statement.lineno in ran and isinstance(statement, (ast.If, ast.Try, ast.For, ast.While, ast.Match))
            if reached and inside & changed and not inside & ran:
                yield None, block[0].lineno
            else:
                yield from _in_block(block, changed, ran)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if block and isinstance(block, list):
            yield block
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body


def _code(body: list[ast.stmt]) -> set[int]:
    """Lines of the statements, without a docstring."""
    first = body[0]
    own = body[1:] if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) else body
    return {line for statement in own for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)}
