"""One file's text, with what it takes to give the very same bytes back."""

from __future__ import annotations

import ast
import codecs
import re
import sys
import warnings
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

from .fstrings import mend_positions

# The tokenizer of CPython ends a line at these three only. `str.splitlines` also splits at form feeds,
# U+2028 and others, which would shift every line number after them.
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+\Z")
_LINE_END = re.compile(r"\r\n|\n|\r")

_COOKIE = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_BLANK_OR_COMMENT = re.compile(rb"^[ \t\f]*(?:#|$)")


class SourceError(Exception):
    """A file that cannot be read as Python; one entry of the report's `errors`, never the end of a run."""

    def __init__(self, file: str, line: int, message: str) -> None:
        super().__init__(file, line, message)
        self.file = file
        self.line = line
        self.message = message

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


@dataclass(frozen=True, eq=False)
class Source:
    """A Python file as text; offsets are characters into `text`, lines and columns for people are 1-based."""

    path: str
    """POSIX label, relative to the root of the run."""
    text: str
    """Decoded, without the byte order mark, newlines as in the file."""
    encoding: str
    bom: bool

    @classmethod
    def read(cls, path_label: str, data: bytes) -> Source:
        """Decode and parse `data`.

        Raises SourceError for a wrong or undecodable encoding (PEP 263), NUL bytes and syntax errors.
        """
        source = cls.decode(path_label, data)
        source.tree  # noqa: B018 - parsed here, so that a syntax error surfaces where the file is read
        return source

    @classmethod
    def decode(cls, path_label: str, data: bytes) -> Source:
        """Decode `data`, which is parsed when the tree is first asked for; raises SourceError as `read` does."""
        bom = data.startswith(codecs.BOM_UTF8)
        body = data[len(codecs.BOM_UTF8) :] if bom else data
        encoding = _declared_encoding(path_label, body, bom)
        try:
            text = body.decode(encoding)
        except UnicodeDecodeError as error:
            line = len(re.findall(rb"\r\n|\n|\r", body[: error.start])) + 1
            raise SourceError(path_label, line, f"not decodable as {encoding}: {error.reason}") from error
        if "\0" in text:
            line = len(_LINE_END.findall(text[: text.index("\0")])) + 1
            raise SourceError(path_label, line, "contains a NUL byte")
        source = cls(path_label, text, encoding, bom)
        # Stateful encodings (ISO-2022-JP, UTF-7) have several spellings of one text; writing such a file back
        # would change lines that no edit touched.
        if encoding != "utf-8" and source.encode(text) != data:
            raise SourceError(path_label, 1, f"the encoding {encoding} does not give the same bytes back")
        return source

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed module; positions are those of `text`. Raises SourceError on a syntax error."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a user's invalid escape sequence is not our message
                tree = ast.parse(self.text)
            if sys.version_info < (3, 12):
                mend_positions(tree, self.text)
            return tree
        except SyntaxError as error:
            version = ".".join(map(str, sys.version_info[:2]))
            message = f"{error.msg} (read as Python {version})"
            raise SourceError(self.path, error.lineno or 1, message) from error
        except (RecursionError, MemoryError) as error:
            raise SourceError(self.path, 1, "nested too deeply for Python's parser") from error
        except ValueError as error:
            raise SourceError(self.path, 1, str(error)) from error

    @cached_property
    def lines(self) -> list[str]:
        """The lines with their ends; joined they are `text`."""
        return _LINE.findall(self.text)

    @cached_property
    def line_starts(self) -> list[int]:
        """Offset of each line; a last entry past a final newline counts as the empty line after it."""
        return [0, *(match.end() for match in _LINE_END.finditer(self.text))]

    def offset(self, line: int, utf8_column: int) -> int:
        """Offset of a position as `ast` gives it: 1-based line, 0-based column in UTF-8 bytes."""
        start = self.line_starts[line - 1]
        if self._ascii:
            return start + utf8_column
        prefix = self.lines[line - 1].encode("utf-8", "surrogatepass")[:utf8_column]
        return start + len(prefix.decode("utf-8", "surrogatepass"))

    def position(self, offset: int) -> tuple[int, int]:
        """(line, column) of an offset, both 1-based, the column in characters."""
        line = bisect_right(self.line_starts, offset)
        return line, offset - self.line_starts[line - 1] + 1

    def span(self, node: ast.AST) -> tuple[int, int]:
        """(start, end) offsets of a node that has a position.

        Decorators lie before the span of their function or class. Before Python 3.12 positions inside an
        f-string are not those of the file.
        """
        start = self.offset(node.lineno, node.col_offset)  # pyright: ignore[reportAttributeAccessIssue]
        end = self.offset(node.end_lineno, node.end_col_offset)  # pyright: ignore[reportAttributeAccessIssue]
        return start, end

    def segment(self, node: ast.AST) -> str:
        """The text of a node that has a position."""
        start, end = self.span(node)
        return self.text[start:end]

    def line_of(self, offset: int) -> str:
        """The line an offset lies on, with its end; empty after a final newline."""
        line, _ = self.position(offset)
        return self.lines[line - 1] if line <= len(self.lines) else ""

    def indent_at(self, offset: int) -> str:
        """The white space that the line of an offset starts with."""
        line = self.line_of(offset)
        return line[: len(line) - len(line.lstrip(" \t\f"))]

    def newline(self, offset: int = 0) -> str:
        """The line end in use at an offset: that of its line, else that of the line before, else `\\n`."""
        after = _LINE_END.search(self.text, offset)
        if after is not None:
            return self._whole_line_end(after)
        line, _ = self.position(offset)
        previous = _LINE_END.search(self.text, self.line_starts[line - 2]) if line > 1 else None
        return previous.group() if previous is not None else "\n"

    def encode(self, text: str) -> bytes:
        """`text` as bytes of this file's encoding, with its byte order mark; raises UnicodeEncodeError."""
        return (codecs.BOM_UTF8 if self.bom else b"") + text.encode(self.encoding)

    def round_trips(self) -> bool:
        """Whether libcst gives the very same text back; a file that fails this is reported, not rewritten.

        A bare carriage return or a form feed before code on its line is known to fail.
        """
        import libcst

        try:
            return libcst.parse_module(self.text).code == self.text
        except (libcst.ParserSyntaxError, RecursionError):
            return False

    @cached_property
    def _ascii(self) -> bool:
        return self.text.isascii()

    def _whole_line_end(self, match: re.Match[str]) -> str:
        # An offset between `\r` and `\n` finds the `\n` alone.
        if match.group() == "\n" and self.text[match.start() - 1 : match.start()] == "\r":
            return "\r\n"
        return match.group()


def _declared_encoding(path: str, body: bytes, bom: bool) -> str:
    """The codec's name by PEP 263.

    `tokenize.detect_encoding` refuses a comment that is not UTF-8 beside its declaration, CPython does not.
    """
    for number, line in enumerate(re.split(rb"\r\n|\n|\r", body[:4096], maxsplit=2)[:2], start=1):
        cookie = _COOKIE.match(line)
        if cookie is not None:
            name = cookie.group(1).decode("ascii", "replace")
            encoding = _codec(name)
            if encoding is None:
                raise SourceError(path, number, f"unknown encoding: {name}")
            if bom and encoding != "utf-8":
                raise SourceError(path, number, f"declares {name} but starts with a UTF-8 byte order mark")
            return encoding
        if not _BLANK_OR_COMMENT.match(line):
            break
    return "utf-8"


def _codec(name: str) -> str | None:
    """The canonical name of a text encoding, None for what is unknown or does not decode to text."""
    try:
        b"#".decode(name)  # an empty one is not looked at
        canonical = codecs.lookup(name).name
    except (LookupError, ValueError):
        return None
    # With a cookie `utf-8-sig` the mark has been taken off already, and must not be written twice.
    return "utf-8" if canonical == "utf-8-sig" else canonical
