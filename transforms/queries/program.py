"""The whole repository as the rules see it: files on demand, values, callers, provenance."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TypeVar, cast

from ..facts.facts import FileFacts
from ..findings import Step
from ..flow.flow import Flow
from ..flow.values import ClassValue, FunctionValue, Instance, Value, Wrapped
from ..text.generated import is_generated, is_helper_module
from ..text.source import Source, SourceError
from .file import File
from .trace import Trace

Found = TypeVar("Found")
_OTHER_FRAMEWORK = re.compile(r"^[ \t]*(?:import|from) (?:paddle|tensorflow|jax|flax|mxnet|oneflow|mindspore)\b", re.MULTILINE)
"""Imports of what has models, optimizers and wrappers of its own, of the same names."""
OBSERVED = "observed in a run: "
"""How a step of a chain begins of which only a run has shown what it says."""


class Program:
    """Facts linked and solved (``flow``, where that has been done); ``load`` gives a file's source again."""

    def __init__(
        self, facts: Sequence[FileFacts], load: Callable[[str], Source], flow: Flow, paths: Collection[str] = (),
        is_said: Callable[[str], bool] = lambda _: False, links: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.facts = facts
        self.flow = flow
        self.paths = frozenset(paths) | {file.path for file in facts}
        """All files of the repository, those without facts as well."""
        self.links = links or {}
        """Symbolic links, to files and to folders (with a slash), and what they lead to."""
        self.is_said = is_said
        """Whether files that are no Python, such as configurations, say a name."""
        self._load = load
        self._files: dict[int, File] = {}
        self._index = {file.path: index for index, file in enumerate(facts)}
        self._mentions: dict[str, bool] = {}
        self._found: dict[Callable[[Program], object], object] = {}
        self.baseline: Program | None = None
        """The program without what a run has shown, where this one knows of a run."""
        self.trace = Trace()
        self.observed_variables: frozenset[int] = frozenset()
        """Variables of the flow that hold what they hold because a run has shown it."""

    def index(self, path: str) -> int:
        """The index of a file; KeyError for one without facts."""
        return self._index[path]

    def file(self, file: int | str) -> File:
        """A file, by index or path."""
        index = self._index[file] if isinstance(file, str) else file
        if index not in self._files:
            self._files[index] = File(self, index, self._load(self.facts[index].path))
        return self._files[index]

    @cached_property
    def wraps(self) -> list[Wrapped]:
        """What the wrappers' constructors give, wherever they are called."""
        return [value for value in self.flow.values if isinstance(value, Wrapped)]

    def once(self, find: Callable[[Program], Found]) -> Found:
        """What a function finds in the whole repository; it is asked once."""
        if find not in self._found:
            self._found[find] = find(self)
        return cast("Found", self._found[find])

    def relevant_files(self) -> list[int]:
        """Files in which a site may lie: all whose facts were asked for, but generated modules and code of other frameworks."""
        return self._relevant_files

    @cached_property
    def _relevant_files(self) -> list[int]:
        return [i for i, file in enumerate(self.facts) if not self._is_irrelevant(file.path)]

    def _is_irrelevant(self, path: str) -> bool:
        text = self.text(path)
        if is_helper_module(path) and is_generated(text):
            return True
        return _OTHER_FRAMEWORK.search(text) is not None and "torch" not in text

    def source(self, path: str) -> Source:
        """The source of any file of the repository, always the same object."""
        return self.file(path).source if path in self._index else self._load(path)

    def text(self, path: str) -> str:
        """The text of any file of the repository."""
        return self._load(path).text

    @cached_property
    def all_texts(self) -> dict[str, str]:
        """The texts of all Python files, those without facts as well: what such a file says may lead to any other one.

        Files that cannot be read as text are not among them: Python could not run them either.
        """
        found: dict[str, str] = {}
        for path in sorted(path for path in self.paths if path.endswith((".py", ".ipynb"))):
            with suppress(SourceError, OSError):
                found[path] = self.text(path)
        return found

    def mentions(self, pattern: str) -> bool:
        """Whether a regular expression is found in some file that has facts."""
        if pattern not in self._mentions:
            self._mentions[pattern] = any(re.search(pattern, self.text(facts.path)) for facts in self.facts)
        return self._mentions[pattern]

    @cached_property
    def files_by_word(self) -> dict[str, list[int]]:
        """The files with facts in whose text each word stands, in order."""
        found: dict[str, list[int]] = {}
        for index, facts in enumerate(self.facts):
            for word in dict.fromkeys(re.findall(r"\w+", self.text(facts.path))):
                found.setdefault(word, []).append(index)
        return found

    def files_that_store(self, attribute: str) -> list[int]:
        """The files in which something is assigned to an attribute of this name."""
        return self._files_by_stored.get(attribute, [])

    @cached_property
    def _files_by_stored(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for index, facts in enumerate(self.facts):
            for name in dict.fromkeys(attribute for _, attribute, _ in facts.stores):
                found.setdefault(name, []).append(index)
        return found

    # --- calls --------------------------------------------------------------------------------------------

    def call_node(self, site: int) -> tuple[File, ast.Call]:
        """The file and the syntax node of a call, by its number."""
        index = self.flow.file_of_call(site)
        file = self.file(index)
        return file, file.calls_by_index[site - self.flow.call_offsets[index]]

    def is_written_as_call(self, site: int) -> bool:
        """Whether a call has a node of its own: that of a decorator has none, -1 is none."""
        if site < 0:
            return False
        index = self.flow.file_of_call(site)
        return site - self.flow.call_offsets[index] in self.file(index).calls_by_index

    def callers(self, file: File, function: ast.AST) -> list[tuple[File, ast.Call]]:
        """The calls in the repository that reach a ``def``, but for those that decorate something with it."""
        value = next((v for v in file.values(function) if isinstance(v, FunctionValue)), None)
        sites = sorted(self.flow.called.get(value, ())) if value is not None else []
        return [self.call_node(site) for site in sites if self.is_written_as_call(site)]

    def callees(self, file: File, call: ast.Call) -> list[FunctionValue]:
        """The functions of the repository that a call reaches."""
        return sorted(self.flow.callees.get(file.call_site(call), ()), key=lambda value: (value.file, value.index))

    @cached_property
    def sites_of_objects(self) -> dict[ClassValue, set[int]]:
        """The calls that make the objects of each class, those of classes derived from it among them."""
        found: dict[ClassValue, set[int]] = {}
        for value in self.flow.values:
            if isinstance(value, Instance):
                for cls in self.flow.ancestors(value.cls):
                    found.setdefault(cls, set()).add(value.site)
        return found

    def class_node(self, value: ClassValue) -> tuple[File, ast.ClassDef | None]:
        """File and syntax node of a class value; no node where the analysis made the class up."""
        file, facts = self.file(value.file), self.facts[value.file].classes[value.index]
        nodes = (n for n in file.nodes(ast.ClassDef) if (n.lineno, n.name) == (facts.line, facts.name))
        return file, next(nodes, None)

    def function_node(self, value: FunctionValue) -> tuple[File, ast.AST]:
        """File and syntax node of a function value."""
        file = self.file(value.file)
        facts = self.facts[value.file].functions[value.index]
        node = file.functions_by_place.get((facts.line, facts.name))
        if node is not None:
            return file, node
        raise ValueError(f"no function {facts.name} at line {facts.line} of {file.path}")

    # --- provenance ---------------------------------------------------------------------------------------

    def provenance(self, file: File, node: ast.AST, value: Value) -> tuple[Step, ...]:
        """The chain from where ``value`` was made to ``node``, one step a place, as people read it."""
        places: list[tuple[str, int]] = [(file.path, node.lineno)]  # pyright: ignore[reportAttributeAccessIssue]
        seen = set(self._observed_calls)
        for variable in self.flow.chain(file.variable(node), value):
            is_observed = variable in self.observed_variables
            variable = self.flow.variable_in_text(variable)
            index = self.file_of_variable(variable)
            if index is None:
                continue
            line = self.facts[index].lines[variable - self.flow.variable_offsets[index]]
            if line:
                places.append((self.facts[index].path, line))
                if is_observed:
                    seen.add(places[-1])
        ordered: list[tuple[str, int]] = []
        for place in reversed(places):
            if not ordered or ordered[-1] != place:
                ordered.append(place)
        return tuple(Step(path, line, self._marked(path, line, (path, line) in seen)) for path, line in ordered)

    def _marked(self, path: str, line: int, seen: bool) -> str:
        """A line of a chain, with a word about where what it says comes from a run."""
        text = self.line_text(path, line)
        return f"{OBSERVED}{text}" if seen else text

    # --- a run --------------------------------------------------------------------------------------------

    @cached_property
    def _observed_calls(self) -> frozenset[tuple[str, int]]:
        """The lines of calls of which only a run has shown all that they enter."""
        if self.baseline is None:
            return frozenset()
        before = self.baseline.flow.callees
        sites = [site for site, entered in self.flow.callees.items() if not entered <= before.get(site, set())]
        return frozenset((self.facts[self.flow.file_of_call(site)].path, self.flow.calls[site].line) for site in sites)

    def is_reached(self, file: File, node: ast.AST) -> bool:
        """Whether the run reached the statement that holds a node."""
        return file.statement(node).lineno in self.trace.lines.get(file.path, ())

    def is_reached_by_some_ranks(self, file: File, block: Sequence[ast.stmt]) -> bool:
        """Whether the run saw some ranks enter a block while others did not."""
        return bool(block) and block[0].lineno in self.trace.lines_of_some_ranks.get(file.path, ())

    def place(self, file: File, node: ast.AST) -> tuple[str, int]:
        """Where a node stands: file and line."""
        return file.path, node.lineno  # pyright: ignore[reportAttributeAccessIssue]

    def line_text(self, path: str, line: int) -> str:
        """One line of a file, without indentation."""
        lines = self._load(path).lines
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""

    def file_of_variable(self, variable: int) -> int | None:
        """The index of the file that a variable of the flow belongs to; None for an attribute's."""
        if not 0 <= variable < self.flow.first_field:
            return None
        return bisect_right(self.flow.variable_offsets, variable) - 1
