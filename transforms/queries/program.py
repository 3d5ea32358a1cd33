"""The whole repository as the rules see it: files on demand, values, callers, provenance."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence

from ..facts.facts import FileFacts
from ..findings import Step
from ..flow.flow import Flow
from ..flow.values import FunctionValue, Value
from ..text.generated import is_generated, is_helper_module
from ..text.source import Source
from .file import File


class Program:
    """Facts linked and solved (``flow``, where that has been done); ``load`` gives a file's source again."""

    def __init__(
        self, facts: Sequence[FileFacts], load: Callable[[str], Source], flow: Flow, paths: Collection[str] = ()
    ) -> None:
        self.facts = facts
        self.flow = flow
        self.paths = frozenset(paths) | {file.path for file in facts}
        """All files of the repository, those without facts as well."""
        self._load = load
        self._files: dict[int, File] = {}
        self._index = {file.path: index for index, file in enumerate(facts)}
        self._mentions: dict[str, bool] = {}

    def index(self, path: str) -> int:
        """The index of a file; KeyError for one without facts."""
        return self._index[path]

    def file(self, file: int | str) -> File:
        """A file, by index or path."""
        index = self._index[file] if isinstance(file, str) else file
        if index not in self._files:
            self._files[index] = File(self, index, self._load(self.facts[index].path))
        return self._files[index]

    def relevant_files(self) -> list[int]:
        """Files in which a site may lie: all whose facts were asked for, but generated modules."""
        paths = (file.path for file in self.facts)
        return [i for i, path in enumerate(paths) if not (is_helper_module(path) and is_generated(self.text(path)))]

    def text(self, path: str) -> str:
        """The text of any file of the repository."""
        return self._load(path).text

    def mentions(self, pattern: str) -> bool:
        """Whether a regular expression is found in some file that has facts."""
        if pattern not in self._mentions:
            self._mentions[pattern] = any(re.search(pattern, self.text(facts.path)) for facts in self.facts)
        return self._mentions[pattern]

    # --- calls --------------------------------------------------------------------------------------------

    def call_node(self, site: int) -> tuple[File, ast.Call]:
        """The file and the syntax node of a call, by its number."""
        index = self.flow.file_of_call(site)
        file = self.file(index)
        return file, file.calls_by_index[site - self.flow.call_offsets[index]]

    def callers(self, file: File, function: ast.AST) -> list[tuple[File, ast.Call]]:
        """The calls in the repository that reach a ``def``."""
        value = next((v for v in file.values(function) if isinstance(v, FunctionValue)), None)
        sites = sorted(self.flow.called.get(value, ())) if value is not None else []
        return [self.call_node(site) for site in sites]

    def callees(self, file: File, call: ast.Call) -> list[FunctionValue]:
        """The functions of the repository that a call reaches."""
        return sorted(self.flow.callees.get(file.call_site(call), ()), key=lambda value: (value.file, value.index))

    def function_node(self, value: FunctionValue) -> tuple[File, ast.AST]:
        """File and syntax node of a function value."""
        file = self.file(value.file)
        facts = self.facts[value.file].functions[value.index]
        for node in file.nodes(ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda):
            if node.lineno == facts.line and facts.name == ("<lambda>" if isinstance(node, ast.Lambda) else node.name):
                return file, node
        raise ValueError(f"no function {facts.name} at line {facts.line} of {file.path}")

    # --- provenance ---------------------------------------------------------------------------------------

    def provenance(self, file: File, node: ast.AST, value: Value) -> tuple[Step, ...]:
        """The chain from where ``value`` was made to ``node``, one step a place, as people read it."""
        places: list[tuple[str, int]] = [(file.path, node.lineno)]  # pyright: ignore[reportAttributeAccessIssue]
        for variable in self.flow.chain(file.variable(node), value):
            variable = self.flow.variable_in_text(variable)
            index = self._file_of_variable(variable)
            if index is None:
                continue
            line = self.facts[index].lines[variable - self.flow.variable_offsets[index]]
            if line:
                places.append((self.facts[index].path, line))
        ordered: list[tuple[str, int]] = []
        for place in reversed(places):
            if not ordered or ordered[-1] != place:
                ordered.append(place)
        return tuple(Step(path, line, self.line_text(path, line)) for path, line in ordered)

    def line_text(self, path: str, line: int) -> str:
        """One line of a file, without indentation."""
        lines = self._load(path).lines
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""

    def _file_of_variable(self, variable: int) -> int | None:
        if not 0 <= variable < self.flow.first_field:
            return None
        return bisect_right(self.flow.variable_offsets, variable) - 1
