"""Imports: how generated code spells a symbol in a file, and the fewest import lines changed to make that true."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .edits import Edit, apply_edits
from .rule import Need
from .source import Source
from .symbols import canonical
from .view import FileView


def spelling(view: FileView, symbol: str, node: ast.AST) -> str:
    """How code at ``node`` refers to a symbol in this file's own style.

    A name that is imported already keeps its alias; a file that imports the module under a name (``fsdp.…``,
    ``dist.…``, ``torch.…``) goes on using it; otherwise the bare name, which ``mend_imports`` imports.
    """
    module, _, name = symbol.rpartition(".")
    for statement in _visible_imports(view, node):
        for alias in statement.names:
            bound = alias.asname or alias.name
            if isinstance(statement, ast.ImportFrom):
                full = canonical(f"{statement.module}.{alias.name}") if not statement.level else ""
                if full == canonical(symbol):
                    return bound
                if full == module and not _is_package_root(module):
                    return f"{bound}.{name}"
            elif alias.asname and canonical(alias.name) == module:
                return f"{alias.asname}.{name}"
    if module in _SPELLED_IN_FULL and _binds_torch(view, node):
        return symbol
    if module == "torch.distributed":
        return f"dist.{name}"
    return name


_SPELLED_IN_FULL = ("torch", "torch.nn.utils", "torch.amp", "torch.optim", "torch.nn.parallel")


def _is_package_root(module: str) -> bool:
    return module == "torch"


def _binds_torch(view: FileView, node: ast.AST) -> bool:
    return any(
        isinstance(s, ast.Import) and any(not a.asname and a.name.partition(".")[0] == "torch" for a in s.names)
        for s in _visible_imports(view, node)
    )


def _visible_imports(view: FileView, node: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    """Import statements of the module and of the functions around a node."""
    scopes = [view.tree, *(a for a in view.ancestors(node) if isinstance(a, (ast.FunctionDef, ast.AsyncFunctionDef)))]
    found: list[ast.Import | ast.ImportFrom] = []
    for statement in ast.walk(view.tree):
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            owner = view.function(statement) or view.tree
            if owner in scopes:
                found.append(statement)
    return found


def _import_line(symbol: str) -> tuple[str, str]:
    """(module, name) of the import that makes the bare spelling of a symbol valid."""
    module, _, name = symbol.rpartition(".")
    if module == "torch.distributed":
        return "torch.distributed", "as dist"
    return module, name


def mend_imports(source: Source, edits: list[Edit], needs: Iterable[Need], old_names: set[str]) -> list[Edit]:
    """The edits, with imports that are no longer used taken out and those that are needed put in.

    ``old_names`` are the names that this file's imports of old symbols bind. Whether they are still used is read
    off the edited text itself.
    """
    edited = ast.parse(apply_edits(source, edits))
    used = _used_names(edited)
    bound = _bound_names(edited)
    wanted: dict[str, set[str]] = {}
    for need in needs:
        written = spelling(need.view, need.symbol, need.node)
        root = written.partition(".")[0]
        if root in bound and root not in old_names and not _clashes(edited, root, need.symbol):
            continue
        if written.count(".") and root != "dist":
            continue
        module, name = _import_line(need.symbol)
        if root in used:
            wanted.setdefault(module, set()).add(name)
    statements = [node for node in ast.walk(source.tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    result = list(edits)
    place: ast.stmt | None = None
    for statement in statements:
        gone = [a for a in statement.names if (a.asname or a.name.partition(".")[0]) in old_names - used]
        module = statement.module if isinstance(statement, ast.ImportFrom) and not statement.level else None
        added = sorted(wanted.pop(module or "", set()) if module and statement in source.tree.body else set())
        if not gone and not added:
            continue
        if statement in source.tree.body:
            place = place or statement
        result.append(_rewrite(source, statement, gone, added, alone=_alone(source, statement)))
    result.extend(_additions(source, wanted, place))
    return result


def _used_names(tree: ast.Module) -> set[str]:
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            used.add(node.value)  # __all__ and quoted annotations
    return used


def _bound_names(tree: ast.Module) -> set[str]:
    return {
        (alias.asname or alias.name.partition(".")[0])
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }


def _clashes(tree: ast.Module, name: str, symbol: str) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name and canonical(f"{node.module}.{alias.name}") == canonical(symbol):
                    return False
    return False


def _alone(source: Source, statement: ast.stmt) -> bool:
    """Whether a block would be left empty without this statement."""
    for node in ast.walk(source.tree):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and statement in body:
                return len(body) == 1 and node is not source.tree
    return False


def _rewrite(source: Source, statement: ast.Import | ast.ImportFrom, gone: list[ast.alias], added: list[str], alone: bool) -> Edit:
    """One import statement with names taken out and put in; deleted with its line when none is left."""
    start, end = source.span(statement)
    kept = [alias for alias in statement.names if alias not in gone]
    if not kept and not added:
        if alone:
            return Edit(start, end, "pass", "an import that is no longer used")
        line_start = source.line_starts[statement.lineno - 1]
        line_end_index = statement.end_lineno or statement.lineno
        line_end = source.line_starts[line_end_index] if line_end_index < len(source.line_starts) else len(source.text)
        whole = not source.text[line_start:start].strip() and not source.text[end:line_end].strip().strip("\\")
        if whole:
            return Edit(line_start, line_end, "", "an import that is no longer used")
        return Edit(start, end, "pass", "an import that is no longer used")
    names = [source.segment(alias) for alias in kept]
    return Edit(start, end, _render(source, statement, names, added, gone), "imports follow the names in use")


def _render(source: Source, statement: ast.Import | ast.ImportFrom, names: list[str], added: list[str], gone: list[ast.alias]) -> str:
    old_text = source.segment(statement)
    every = _ordered(names, added)
    if isinstance(statement, ast.Import):
        return "import " + ", ".join(names)
    head = f"from {'.' * statement.level}{statement.module or ''} import "
    indent = source.indent_at(source.span(statement)[0])
    if "(" in old_text and "\n" in old_text:
        if not added and not any("#" in line for line in old_text.splitlines()):
            lines = [f"{indent}    {name}," for name in every]
            return head + "(\n" + "\n".join(lines) + f"\n{indent})"
        return _edit_lines(source, statement, gone, added, indent)
    line = head + ", ".join(every)
    if len(indent) + len(line) <= 100:
        return line
    return head + "(\n" + "".join(f"{indent}    {name},\n" for name in every) + f"{indent})"


def _edit_lines(source: Source, statement: ast.Import | ast.ImportFrom, gone: list[ast.alias], added: list[str], indent: str) -> str:
    """A parenthesised import with comments: whole lines go and come, the others keep theirs."""
    gone_lines = {alias.lineno for alias in gone}
    kept_lines = {alias.lineno for alias in statement.names if alias not in gone}
    lines: list[str] = []
    first = statement.lineno
    for number in range(first, (statement.end_lineno or first) + 1):
        text = source.lines[number - 1].rstrip("\r\n")
        if number in gone_lines and number not in kept_lines and number != first:
            continue
        if number in gone_lines:
            for alias in gone:
                if alias.lineno == number:
                    segment = source.segment(alias)
                    text = text.replace(f"{segment}, ", "").replace(f"{segment},", "").replace(f", {segment}", "")
        lines.append(text)
    closing = lines.pop()
    inner = indent + "    "
    lines.extend(f"{inner}{name}," for name in added)
    lines.append(closing)
    lines[0] = lines[0][source.span(statement)[0] - source.line_starts[first - 1] :]
    return "\n".join(lines)


def _ordered(names: list[str], added: list[str]) -> list[str]:
    """New names among the old: sorted where the old ones were, behind them otherwise."""
    key = str.lower if names == sorted(names, key=str.lower) else None
    if names == sorted(names):
        return sorted({*names, *added})
    if key is not None:
        return sorted({*names, *added}, key=key)
    return [*names, *(name for name in added if name not in names)]


def _additions(source: Source, wanted: dict[str, set[str]], place: ast.stmt | None) -> list[Edit]:
    """New import lines, where the first changed import stood, else behind the last import of torch or of all."""
    if not wanted:
        return []
    lines: list[str] = []
    for module in sorted(wanted):
        names = sorted(wanted[module])
        if "as dist" in names:
            lines.append("import torch.distributed as dist")
            names.remove("as dist")
        if names:
            line = f"from {module} import {', '.join(names)}"
            if len(line) > 100:
                line = f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"
            lines.append(line)
    text = "\n".join(lines) + "\n"
    offset = source.line_starts[place.lineno - 1] if place is not None else _after_imports(source)
    if offset == len(source.text) and source.text and not source.text.endswith("\n"):
        text = "\n" + text
    return [Edit(offset, offset, text, "imports of what the new code uses")]


def _after_imports(source: Source) -> int:
    last: ast.stmt | None = None
    for statement in source.tree.body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            names = [a.name for a in statement.names] + [getattr(statement, "module", None) or ""]
            if last is None or any(name.partition(".")[0] == "torch" for name in names) or not _is_torch(last):
                last = statement
    if last is None:
        body = source.tree.body
        is_docstring = body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
        if not is_docstring:
            return source.line_starts[body[0].lineno - 1] if body else 0
        last = body[0]
    line = last.end_lineno or last.lineno
    return source.line_starts[line] if line < len(source.line_starts) else len(source.text)


def _is_torch(statement: ast.stmt) -> bool:
    names = [a.name for a in getattr(statement, "names", [])] + [getattr(statement, "module", None) or ""]
    return any(name.partition(".")[0] == "torch" for name in names)
