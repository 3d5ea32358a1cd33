"""The fewest import lines changed: old names that nothing uses any more go, needed ones come."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..rule import Need
from ..view import FileView
from .edits import Edit
from .import_names import LONGEST_LINE, render
from .import_order import (
    ImportStatement,
    NewLine,
    block_around,
    first_import_offset,
    in_order,
    line_after,
    lines_apart,
    offset_in,
    stays_in_order,
)
from .source import Source
from .spelling import all_imports, import_of, spelling, visible_imports

_GONE = "an import that nothing uses any more"
_ADDED = "imports of what the new code uses"


@dataclass
class _Wanted:
    """What has to be imported in one scope: names by module."""

    modules: dict[str, set[str]] = field(default_factory=dict)

    def add(self, module: str, name: str) -> None:
        self.modules.setdefault(module, set()).add(name)


def used_names(tree: ast.AST) -> set[str]:
    """Names that a module reads, also in quoted annotations and in ``__all__``."""
    used: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            used.add(node.id)
        elif isinstance(node, (ast.arg, ast.AnnAssign)) and node.annotation is not None:
            used |= _quoted(node.annotation)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns is not None:
            used |= _quoted(node.returns)
        elif isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                used |= {c.value for c in ast.walk(node) if isinstance(c, ast.Constant) and isinstance(c.value, str)}
    return used


def _quoted(annotation: ast.expr) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(annotation):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                tree = ast.parse(node.value, mode="eval")
            except (SyntaxError, ValueError):
                continue
            names |= {inner.id for inner in ast.walk(tree) if isinstance(inner, ast.Name)}
    return names


def mend_imports(
    view: FileView, edited: ast.Module, edits: list[Edit], needs: Iterable[Need], removable: set[str]
) -> list[Edit]:
    """The edits, with the import lines changed that follow from them.

    ``removable`` are names bound by imports of old symbols; whether they are still used is read off the tree of the
    edited text, and so is whether a needed name is used at all.
    """
    source = view.source
    used = used_names(edited)
    gone = removable - used
    wanted: dict[ImportStatement | None, _Wanted] = {}
    for need in needs:
        written = spelling(need.view, need.symbol, need.node)
        root = written.partition(".")[0]
        if root not in used or _is_bound(view, need.node, root, gone):
            continue
        entry = import_of(need.symbol, written)
        if entry is not None:
            wanted.setdefault(_local_place(view, need.node, gone), _Wanted()).add(*entry)
    result = list(edits)
    at_module = wanted.get(None, _Wanted())
    anchor: ImportStatement | None = None
    own = _own_imports(view)
    joining = _joining(source, at_module, gone, own)
    for statement in all_imports(view):
        unread = gone | _unread_locally(view, edited, statement, removable & used)
        leaving = [alias for alias in statement.names if _bound(alias) in unread]
        local = wanted.get(statement)
        coming = joining.get(statement, [])
        if statement in source.tree.body and leaving and anchor is None and _is_of_torch(statement):
            anchor = statement
        if (leaving or coming or local) and not _is_rewritten(source, statement, edits):
            result.extend(_change(source, statement, leaving, coming, local))
    result.extend(_additions(source, at_module, anchor, own))
    return _without_gaps(source, result)


def _is_rewritten(source: Source, statement: ImportStatement, edits: list[Edit]) -> bool:
    """Whether an import stands in text that an edit writes anew, so that no other edit may touch it."""
    start, end = source.span(statement)
    return any(edit.start < end and start < edit.end for edit in edits)


def _unread_locally(view: FileView, edited: ast.Module, statement: ImportStatement, names: set[str]) -> set[str]:
    """Those of the names that an import inside a function brings and nothing in the function reads any more."""
    function = view.function(statement)
    bound = names & {_bound(alias) for alias in statement.names}
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) or not bound:
        return set()
    text = ast.dump(statement)
    same = [node for node in ast.walk(edited) if isinstance(node, type(function)) and node.name == function.name]
    holders = [node for node in same if any(isinstance(n, type(statement)) and ast.dump(n) == text for n in ast.walk(node))]
    return bound.difference(*map(used_names, holders)) if holders else set()


def _without_gaps(source: Source, edits: list[Edit]) -> list[Edit]:
    """The edits, with the blank lines before import lines that go as a whole block, or after them at the top."""
    gone = sorted((e for e in edits if e.why == _GONE and not e.text and e.end > e.start), key=lambda e: e.start)
    blocks: list[list[Edit]] = []
    others = [edit.start for edit in edits if edit not in gone]
    for edit in gone:
        reached = blocks[-1][-1].end if blocks else 0
        parted = any(reached <= place <= edit.start for place in others)
        if blocks and not parted and not source.text[reached : edit.start].strip():
            blocks[-1].append(edit)
        else:
            blocks.append([edit])
    result = list(edits)
    for block in blocks:
        start, end = block[0].start, block[-1].end
        if any(e not in block and start <= e.start <= end for e in edits):
            continue
        before, after = source.text[:start], source.text[end:]
        leading = len(before) - len(before.rstrip())
        trailing = len(after) - len(after.lstrip("\r\n"))
        if before.strip() and not trailing:
            continue
        if not before.strip() or before.rstrip(" \t").endswith((":\n", ":\r\n")):
            end += trailing
        elif before.endswith(("\n\n", "\r\n\r\n")):
            start -= leading - len(source.newline(start - leading))
        result = [e for e in result if e not in block] + [Edit(start, end, "", _GONE)]
    return result


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _is_bound(view: FileView, node: ast.AST, name: str, gone: set[str]) -> bool:
    bound = {_bound(alias) for statement in visible_imports(view, node) for alias in statement.names}
    return name in bound - gone


def _local_place(view: FileView, node: ast.AST, gone: set[str]) -> ImportStatement | None:
    """The import inside the function around ``node`` that leaves, whose place the new one takes."""
    for statement in visible_imports(view, node):
        leaves = view.function(statement) is not None and any(_bound(alias) in gone for alias in statement.names)
        if leaves and view.parents[statement] in view.ancestors(node):
            return statement
    return None


def _own_imports(view: FileView) -> set[ImportStatement]:
    """Imports of modules of the repository itself."""
    own: set[ImportStatement] = set()
    for statement in all_imports(view):
        modules = [alias.name for alias in statement.names]
        if isinstance(statement, ast.ImportFrom):
            modules = ["." * statement.level + (statement.module or "")]
        if any(module and view.program.flow.modules.find(view.index, module) is not None for module in modules):
            own.add(statement)
    return own


def _at_the_top(source: Source) -> list[ImportStatement]:
    """The imports of a module in front of its functions and classes, all of them where none stands there."""
    body = source.tree.body
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    first = next((number for number, statement in enumerate(body) if isinstance(statement, definitions)), len(body))
    imports = [statement for statement in body if isinstance(statement, (ast.Import, ast.ImportFrom))]
    return [statement for statement in imports if statement in body[:first]] or imports


def _joining(
    source: Source, wanted: _Wanted, gone: set[str], own: set[ImportStatement]
) -> dict[ImportStatement, list[str]]:
    """The wanted names that a statement takes along which imports from their module; they are taken off the list."""
    found: dict[ImportStatement, list[str]] = {}
    for statement in _at_the_top(source):
        if not isinstance(statement, ast.ImportFrom) or statement.level or not statement.module:
            continue
        names = wanted.modules.get(statement.module, set())
        joining = sorted(name for name in names if name and not name.startswith("as "))
        staying = [alias for alias in statement.names if _bound(alias) not in gone]
        renamed = bool(staying) and all(alias.asname for alias in staying)
        if not joining or renamed or any(alias.name == "*" for alias in statement.names):
            continue
        if stays_in_order(block_around(source, statement, own), statement, joining):
            names.difference_update(joining)
            found[statement] = joining
    return found


def _change(
    source: Source, statement: ImportStatement, leaving: list[ast.alias], coming: list[str], local: _Wanted | None
) -> list[Edit]:
    """One import statement with names taken out and put in, and new lines of its own scope before it."""
    start, end = source.span(statement)
    staying = [alias for alias in statement.names if alias not in leaving]
    indent = source.indent_at(start)
    extra = [line.text for line in _lines(local)] if local else []
    before = "".join(line.replace("\n", f"\n{indent}") + f"\n{indent}" for line in extra)
    if staying or coming:
        return [Edit(start, end, before + render(source, statement, staying, leaving, coming), _ADDED)]
    if extra:
        return [Edit(start, end, before.rstrip(), _ADDED)]
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    line_start = source.line_starts[first - 1]
    line_end = source.line_starts[last] if last < len(source.line_starts) else len(source.text)
    alone = not source.text[line_start:start].strip() and not source.text[end:line_end].strip()
    commented = source.text[end:line_end].lstrip().startswith("#") and not source.text[line_start:start].strip()
    if (alone or commented) and not _only_statement(source, statement):
        return [Edit(_with_comment(source, first, leaving), line_end, "", _GONE)]
    return [Edit(start, end, "pass", _GONE)]


def _with_comment(source: Source, line: int, leaving: list[ast.alias]) -> int:
    """Where a line (1-based) starts, or the comment right above it, if that is about names that leave with the line."""
    first = line
    indent = source.indent_at(source.line_starts[line - 1])
    while first > 1 and source.lines[first - 2].startswith(f"{indent}#"):
        first -= 1
    comment = "".join(source.lines[first - 1 : line - 1])
    about = any(re.search(rf"\b{re.escape(alias.name)}\b", comment) for alias in leaving)
    return source.line_starts[(first if about else line) - 1]


def _only_statement(source: Source, statement: ast.stmt) -> bool:
    """Whether a block would be left empty without this statement."""
    for node in ast.walk(source.tree):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and statement in body:
                return len(body) == 1 and node is not source.tree
    return False


def _lines(wanted: _Wanted) -> list[NewLine]:
    """Import statements for what is wanted, sorted by module."""
    lines: list[NewLine] = []
    for module in sorted(wanted.modules):
        names = sorted(wanted.modules[module])
        if "" in names:
            lines.append(NewLine(f"import {module}", module, ""))
            names.remove("")
        if "as dist" in names:
            lines.append(NewLine(f"import {module} as dist", module, ""))
            names.remove("as dist")
        if names:
            line = f"from {module} import {', '.join(names)}"
            if len(line) > LONGEST_LINE:
                line = f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"
            lines.append(NewLine(line, module, names[0]))
    return lines


def _additions(
    source: Source, wanted: _Wanted, anchor: ImportStatement | None, own: set[ImportStatement]
) -> list[Edit]:
    """New import lines: where a sorted block has them, else where the first changed import stood or behind the last.

    The block is that of the first changed import, of the last import of torch, or of the last import of all.
    """
    lines = _lines(wanted)
    imports = _at_the_top(source)
    if not lines:
        return []
    if not imports:
        offset = first_import_offset(source)
        front, behind = lines_apart(source, offset)
        text = front + "".join(f"{line.text}\n" for line in lines) + behind
        return [_insertion(source, offset, text)]
    of_torch = [statement for statement in imports if _is_of_torch(statement)]
    last = (of_torch or imports)[-1]
    block = block_around(source, anchor or last, own)
    of_python = [statement for statement in imports if _is_of_python(statement)]
    edits: list[Edit] = []
    if of_python and of_python[-1] not in block:
        ours = block_around(source, of_python[-1], own)
        for line in in_order(ours, [line for line in lines if _is_standard(line.module)]):
            lines.remove(line)
            offset = offset_in(source, ours, line)
            edits.append(_insertion(source, line_after(source, of_python[-1]) if offset is None else offset, f"{line.text}\n"))
    beside = source.line_starts[anchor.lineno - 1] if anchor is not None else line_after(source, last)
    for line in in_order(block, lines):
        offset = offset_in(source, block, line)
        edits.append(_insertion(source, beside if offset is None else offset, f"{line.text}\n"))
    return edits


def _insertion(source: Source, offset: int, text: str) -> Edit:
    unfinished = bool(offset) and source.text[offset - 1] not in "\r\n"
    return Edit(offset, offset, "\n" + text if unfinished else text, _ADDED)


def _is_of_python(statement: ImportStatement) -> bool:
    """Whether a statement imports from the standard library, ``__future__`` apart."""
    if isinstance(statement, ast.ImportFrom):
        return not statement.level and _is_standard(statement.module or "")
    return all(_is_standard(alias.name) for alias in statement.names)


def _is_standard(module: str) -> bool:
    return module != "__future__" and module.partition(".")[0] in sys.stdlib_module_names


def _is_of_torch(statement: ImportStatement) -> bool:
    modules = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else [statement.module or ""]
    return any(module.partition(".")[0] == "torch" for module in modules)
