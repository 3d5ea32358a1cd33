"""What differs between the code of the two sides, and how much of it ran."""

from __future__ import annotations

import ast
import difflib
import io
import tokenize
from dataclasses import dataclass, field
from pathlib import Path

from .sides import Place
from .verdict import NotExecuted
from .working_files import walk

NO_CODE = frozenset(
    (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
)


@dataclass(frozen=True)
class Statement:
    """A statement without the statements inside it: its own lines (1-based, in order)."""

    lines: tuple[int, ...]


@dataclass
class ChangedFile:
    """A Python file that differs: the changed statements of each side, None where the side has no such file."""

    name: str
    old_path: Path | None
    new_path: Path | None
    old: list[Statement] = field(default_factory=list)
    new: list[Statement] = field(default_factory=list)


@dataclass
class Changes:
    """`other` are files that differ and are not Python (their effect shows in the run, their lines cannot), and where the
    old side has them."""

    files: list[ChangedFile] = field(default_factory=list)
    other: dict[str, Path | None] = field(default_factory=dict)

    @property
    def statements(self) -> int:
        return sum(len(file.old) + len(file.new) for file in self.files)

    def paths(self, side: str) -> list[Path]:
        """The changed files of a side, whose executed lines are to be recorded."""
        paths = [file.old_path if side == "old" else file.new_path for file in self.files]
        return [path for path in paths if path is not None]


def find_changes(old: Place, new: Place) -> Changes:
    """Compares the two sides file by file; of two files given by name, just these two."""
    if old.script is not None and new.script is not None:
        return compare_files([(new.script, old.root / old.script, new.root / new.script)])
    names_old, names_new = set(walk(old.top)), set(walk(new.top))
    # Directories that are compared may lie at different depths of their tops; what counts is the place below root.
    below_old, below_new = _relative_to_root(names_old, old), _relative_to_root(names_new, new)
    named = [(name, below_old.get(name), below_new.get(name)) for name in sorted(below_old.keys() | below_new.keys())]
    return compare_files(named)


def _relative_to_root(names: set[str], place: Place) -> dict[str, Path]:
    depth = "../" * len(place.root.relative_to(place.top).parts)
    paths = {name: place.top / name for name in names}
    return {
        path.relative_to(place.root).as_posix() if path.is_relative_to(place.root) else depth + name: path
        for name, path in paths.items()
    }


def compare_files(named: list[tuple[str, Path | None, Path | None]]) -> Changes:
    """What differs between files of the old and the new side (None: it has no such file)."""
    changes = Changes()
    for name, old, new in named:
        if old is not None and new is not None and _same_content(old, new):
            continue
        if not name.endswith(".py"):
            changes.other[name] = old
            continue
        file = ChangedFile(name, old, new)
        source_old, source_new = _read(old), _read(new)
        lines_old, lines_new = _changed_lines(source_old, source_new)
        file.old, file.new = _statements(source_old, lines_old), _statements(source_new, lines_new)
        if file.old or file.new:
            changes.files.append(file)
    return changes


def _same_content(old: Path, new: Path) -> bool:
    if not old.is_file() or not new.is_file():
        return old.is_file() == new.is_file()
    if old.resolve() == new.resolve():
        return True
    first, second = old.stat(), new.stat()
    if first.st_size != second.st_size:
        return False
    # Data that both sides were given a copy of can be large, and copies keep their time.
    return (first.st_mtime_ns == second.st_mtime_ns and old.suffix != ".py") or old.read_bytes() == new.read_bytes()


def _read(path: Path | None) -> str:
    return "" if path is None else path.read_text(encoding="utf-8", errors="replace")


def _changed_lines(old: str, new: str) -> tuple[set[int], set[int]]:
    """1-based numbers of lines that were removed or replaced, and of lines that were added or replaced."""
    removed: set[int] = set()
    added: set[int] = set()
    matcher = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag != "equal":
            removed.update(range(a + 1, b + 1))
            added.update(range(c + 1, d + 1))
    return removed, added


def _statements(source: str, lines: set[int]) -> list[Statement]:
    """The statements that the lines belong to; comments, blank lines and docstrings belong to none."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return [Statement(tuple(sorted(lines)))] if lines else []
    lines = lines & _lines_with_code(source)
    found: list[Statement] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt) or _is_text(node):
            continue
        own = own_lines(node)
        if lines & own:
            found.append(Statement(tuple(sorted(own))))
    return sorted(found, key=lambda statement: statement.lines)


def _lines_with_code(source: str) -> set[int]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {line for token in tokens if token.type not in NO_CODE for line in range(token.start[0], token.end[0] + 1)}


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def own_lines(node: ast.stmt) -> set[int]:
    """The lines of a statement without those of the statements inside it."""
    decorators = [decorator.lineno for decorator in getattr(node, "decorator_list", [])]
    own = set(range(min([node.lineno, *decorators]), (node.end_lineno or node.lineno) + 1))
    for field_name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, field_name, []):
            start = getattr(inner, "lineno", None) or inner.pattern.lineno
            end = getattr(inner, "end_lineno", None) or inner.body[-1].end_lineno
            own -= set(range(min([start, *(d.lineno for d in getattr(inner, "decorator_list", []))]), end + 1))
    return own


def executed(changes: Changes, lines: dict[str, set[int]]) -> tuple[int, list[NotExecuted]]:
    """How many changed statements ran, and the lines of the new side's that did not (with the removed ones counted
    on the old side). `lines`: executed lines by absolute path, of both sides together."""
    count = 0
    missed: list[NotExecuted] = []
    for file in changes.files:
        sides = ((file.old_path, file.old), (file.new_path, file.new))
        for path, statements in sides:
            ran = lines.get(str(path), set())
            count += sum(bool(ran.intersection(statement.lines)) for statement in statements)
        ran = lines.get(str(file.new_path), set())
        left = sorted({line for s in file.new if not ran.intersection(s.lines) for line in s.lines})
        if left:
            missed.append(NotExecuted(file.name, left))
    return count, missed
