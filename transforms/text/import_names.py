"""One import statement with other names: on its line, or in the lines that it is spread over."""

from __future__ import annotations

import ast

from .import_order import ImportStatement, ordered_names
from .source import Source

LONGEST_LINE = 100


def render(
    source: Source, statement: ImportStatement, staying: list[ast.alias], leaving: list[ast.alias], coming: list[str]
) -> str:
    """The statement with other names: in its own lines where it is spread over several, else in one."""
    text = source.segment(statement)
    names = [source.segment(alias) for alias in staying]
    if isinstance(statement, ast.Import):
        return "import " + ", ".join(names)
    indent = source.indent_at(source.span(statement)[0])
    spread = "\n" in text and len({alias.lineno for alias in statement.names}) > 1
    if spread and coming and "#" not in text and _is_packed(statement):
        return _packed(source, statement, ordered_names(names, coming))
    if spread and (staying or len(coming) > 1 or "#" in text):
        return _render_lines(source, statement, leaving, coming, indent)
    head = f"from {'.' * statement.level}{statement.module or ''} import "
    ordered = ordered_names(names, coming)
    line = head + ", ".join(ordered)
    if len(indent) + len(line) <= LONGEST_LINE or (not coming and "\n" not in text):
        return line
    return head + "(\n" + "".join(f"{indent}    {name},\n" for name in ordered) + f"{indent})"


def _render_lines(
    source: Source, statement: ast.ImportFrom, leaving: list[ast.alias], coming: list[str], indent: str
) -> str:
    """A parenthesised import over several lines: whole lines go and come, the others keep their comments."""
    start, end = source.span(statement)
    pieces = list(source.text[start:end])
    for alias in leaving:
        first, last = source.span(alias)
        first, last = first - start, last - start
        after = "".join(pieces[last:])
        comma = len(after) - len(after.lstrip())
        if after.lstrip().startswith(","):
            last += comma + 1
            while pieces[last] in (" ", "\t") and pieces[first - 1] in (" ", "\t"):
                last += 1
        for position in range(first, last):
            pieces[position] = ""
    lines = "".join(pieces).split("\n")
    emptied = {alias.lineno - statement.lineno for alias in leaving}
    kept = [
        line.rstrip(" \t")
        for number, line in enumerate(lines)
        if number not in emptied or number == 0 or line.partition("#")[0].strip()
    ]
    closing = kept.pop()
    inner = kept[-1][: len(kept[-1]) - len(kept[-1].lstrip())] if len(kept) > 1 else indent + "    "
    last = max((n for n, line in enumerate(kept) if line.partition("#")[0].strip()), default=0)
    if coming and kept[last].partition("#")[0].rstrip()[-1:] not in (",", "("):
        kept[last] = _with_comma(kept[last])
    existing = [line.strip().rstrip(",") for line in kept[1:]]
    mixed = ordered_names(existing, coming)
    if mixed != [*existing, *coming]:
        lines_of = dict(zip(existing, kept[1:], strict=True))
        kept[1:] = [lines_of.get(name, f"{inner}{name},") for name in mixed]
    else:
        kept[last + 1 : last + 1] = [f"{inner}{name}," for name in coming]
    return "\n".join([*kept, closing])


def _with_comma(line: str) -> str:
    """A line of an import list with a comma behind its name, in front of a comment."""
    code, mark, comment = line.partition("#")
    return f"{code.rstrip()},{'  ' if mark else ''}{mark}{comment}"


def _is_packed(statement: ast.ImportFrom) -> bool:
    """Whether several names share a line."""
    return len({alias.lineno for alias in statement.names}) < len(statement.names)


def _packed(source: Source, statement: ast.ImportFrom, names: list[str]) -> str:
    """As many names a line as fit into the longest line of the statement, each line where the first name stands."""
    text, start = source.segment(statement), source.span(statement)[0]
    first, last = source.span(statement.names[0])[0], source.span(statement.names[-1])[1]
    inner = " " * (source.position(first)[1] - 1)
    room = max(len(source.lines[number - 1].rstrip()) for number in _lines_of(statement)) - len(inner)
    lines = [""]
    for name in names:
        joined = f"{lines[-1]} {name},".lstrip()
        if lines[-1] and len(joined) > room:
            lines.append(f"{name},")
        else:
            lines[-1] = joined
    return text[: first - start] + f"\n{inner}".join(lines).rstrip(",") + text[last - start :]


def _lines_of(statement: ast.ImportFrom) -> range:
    return range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
