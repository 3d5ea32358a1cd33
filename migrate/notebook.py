"""Notebooks: the Python of their code cells as one text, and a text that was rewritten put back into the cells.

A comment in front of each cell tells later where it began. Lines for IPython (`%matplotlib inline`, `!pip install`) stand aside
meanwhile. Outputs, metadata and the way in which the JSON is written stay as they are.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

_START = "# to-fsdp2 cell {}"
_STARTED = re.compile(r"^# to-fsdp2 cell (\d+)\n", re.MULTILINE)
_ASIDE = "pass  # to-fsdp2 line {}"
_SET_ASIDE = re.compile(r"pass  # to-fsdp2 line (\d+)$", re.MULTILINE)
_FOR_IPYTHON = re.compile(r"^([ \t]*)((?:[\w., \t]+=[ \t]*)?[%!?].*|[\w.]+\?{1,2}[ \t]*)$", re.MULTILINE)
_PYTHON_INSIDE = ("%%time", "%%timeit", "%%capture", "%%prun")
_PLACE = re.compile(r"(?P<file>.*\.ipynb)#cell(?P<cell>\d+)")


class NotebookError(Exception):
    """A notebook that cannot be read as Python, or not be written back as it was."""


@dataclass
class Notebook:
    """One notebook. `text` is what is analysed; its lines belong to cells, which are counted from 1, all kinds together."""

    data: bytes
    document: dict[str, Any] = field(repr=False)
    text: str = ""
    not_python: dict[int, str] = field(default_factory=dict)
    """Code cells that are left out, as `%%bash` ones: cell and text."""
    _sources: dict[int, str] = field(default_factory=dict)
    _aside: list[str] = field(default_factory=list)
    _lines: list[int] = field(default_factory=list)
    """The line of the text at which each cell begins."""

    @classmethod
    def read(cls, data: bytes) -> Notebook:
        """Raises NotebookError for what is no notebook of Python."""
        try:
            document = json.loads(data.decode())
            cells = [(cell["cell_type"], cell["source"]) for cell in document["cells"]]
            language = document.get("metadata", {}).get("kernelspec", {}).get("language", "python")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise NotebookError("is not a notebook of format 4") from error
        if language != "python":
            raise NotebookError(f"is written in {language}")
        notebook = cls(data, document)
        for number, (kind, source) in enumerate(cells, start=1):
            if kind == "code":
                notebook._add(number, source if isinstance(source, str) else "".join(source))
        return notebook

    def _add(self, number: int, source: str) -> None:
        python = self._python_of(number, source)
        if python is None:
            self.not_python[number] = source
            return
        self._sources[number] = source
        self._lines.append(self.text.count("\n") + 2)
        self.text += f"{_START.format(number)}\n{python}\n"

    def _python_of(self, number: int, source: str) -> str | None:
        """A cell with its lines for IPython set aside; None where another language follows `%%`."""
        first = source.lstrip().partition("\n")[0]
        if first.startswith("%%") and first.split()[0] not in _PYTHON_INSIDE:
            return None
        if _syntax_error(source) is None:
            return source
        python = _FOR_IPYTHON.sub(self._put_aside, source)
        error = _syntax_error(python)
        if error is not None:
            raise NotebookError(f"cell {number} is not Python: {error}")
        return python

    def _put_aside(self, line: re.Match[str]) -> str:
        self._aside.append(line[2])
        return line[1] + _ASIDE.format(len(self._aside) - 1)

    def place(self, line: int) -> tuple[int, int]:
        """The cell of a line of the text, and the line in the cell."""
        index = max(0, bisect_right(self._lines, line) - 1)
        return list(self._sources)[index], max(1, line - self._lines[index] + 1)

    def with_text(self, text: str) -> bytes:
        """The notebook with a rewritten text in its cells. Raises NotebookError where that cannot be."""
        parts = _STARTED.split(text)
        numbers = [int(number) for number in parts[1::2]]
        if numbers != list(self._sources):
            raise NotebookError("its rewrite cannot be told apart by cells")
        cells = dict(zip(numbers, parts[2::2], strict=True))
        cells[numbers[0]] = parts[0] + cells[numbers[0]]
        before = self._written()
        for number, old in self._sources.items():
            new = _SET_ASIDE.sub(lambda found: self._aside[int(found[1])], cells[number]).removesuffix("\n")
            if new != old:
                cell = self.document["cells"][number - 1]
                new = new if old.endswith("\n") else new.rstrip("\n")
                cell["source"] = new if isinstance(cell["source"], str) else new.splitlines(keepends=True)
        return before.dumps(self.document)

    def _written(self) -> _Style:
        """How the JSON is written; raises NotebookError where it could not be written so again."""
        text = self.data.decode()
        second = text.partition("\n")[2]
        for indent in (len(second) - len(second.lstrip(" ")) or None, "\t"):
            for ascii_alone in (False, True):
                style = _Style(indent, ascii_alone, text[len(text.rstrip()) :])
                if style.dumps(self.document) == self.data:
                    return style
        raise NotebookError("its JSON is written in a way that could not be kept")


@dataclass(frozen=True)
class _Style:
    indent: int | str | None
    ascii_alone: bool
    end: str

    def dumps(self, document: dict[str, Any]) -> bytes:
        return (json.dumps(document, indent=self.indent, ensure_ascii=self.ascii_alone) + self.end).encode()


def cell_place(file: str, cell: int) -> str:
    """A cell as reports name it: `train.ipynb#cell3`."""
    return f"{file}#cell{cell}"


def file_of(place: str) -> str:
    """The file of what may be a cell."""
    cell = _PLACE.fullmatch(place)
    return cell["file"] if cell else place


def _syntax_error(text: str) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return getattr(error, "msg", "") or type(error).__name__
    return None
