"""The whole repository as the rules see it: files on demand, values, callers, provenance."""

from __future__ import annotations

import ast
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from .analysis.facts import FileFacts
from .analysis.flow import Flow
from .analysis.values import Container, Derived, FunctionValue, Value
from .findings import Step
from .text.source import Source
from .view import FileView


class Program:
    """Facts linked and solved (``flow``, where that has been done); ``load`` gives a file's source again."""

    def __init__(self, facts: Sequence[FileFacts], load: Callable[[str], Source], flow: Flow | None = None) -> None:
        self.files = facts
        self.flow = flow or Flow(facts)
        self._load = load
        self.keeps_ddp = ""
        """Why models of DDP stay under it, empty if they are sharded like those of FSDP1."""
        self._views: dict[int, FileView] = {}
        self._attributes: dict[int, dict[str, int]] | None = None
        self._index = {file.path: index for index, file in enumerate(facts)}

    def view(self, file: int | str) -> FileView:
        """The view of a file, by index or path."""
        index = self._index[file] if isinstance(file, str) else file
        if index not in self._views:
            self._views[index] = FileView(self, index, self._load(self.files[index].path))
        return self._views[index]

    def views_with(self, word: str) -> Iterator[FileView]:
        """The views of all files whose text holds a word; the other files are not parsed for it."""
        for index, file in enumerate(self.files):
            if word in self._load(file.path).text:
                yield self.view(index)

    # --- places -------------------------------------------------------------------------------------------

    def file_of_variable(self, variable: int) -> int | None:
        """Index of the file that a variable belongs to; None for attributes and elements."""
        if not 0 <= variable < self.flow.first_field:
            return None
        return bisect_right(self.flow.variable_offsets, variable) - 1

    def call_node(self, site: int) -> tuple[FileView, ast.Call]:
        """The view and the syntax node of a call, by its number."""
        file = self.flow.file_of_call(site)
        view = self.view(file)
        return view, view.calls_by_index[site - self.flow.call_offsets[file]]

    def call_place(self, site: int) -> tuple[str, int]:
        """File and line of a call, without loading the file."""
        file = self.flow.file_of_call(site)
        return self.files[file].path, self.flow.calls[site].line

    def function_value(self, view: FileView, node: ast.AST) -> FunctionValue | None:
        """The analysis value of a ``def``."""
        return next((value for value in view.values(node) if isinstance(value, FunctionValue)), None)

    def callers(self, view: FileView, node: ast.AST) -> list[tuple[FileView, ast.Call]]:
        """The calls in the repository that reach a ``def``."""
        value = self.function_value(view, node)
        sites = sorted(self.flow.called.get(value, ())) if value is not None else []
        return [self.call_node(site) for site in sites]

    def is_applied(self, view: FileView, call: ast.Call) -> bool:
        """Whether a call hands its function on to be called with the elements of its arguments, as ``map`` does."""
        return view.call_site(call) in self.flow.applied_at

    def is_deferred(self, view: FileView, node: ast.AST) -> bool:
        """Whether a ``def`` is handed to a thread, a process, an executor or as a handler of signals or of the exit."""
        return bool(self.flow.deferred) and self.function_value(view, node) in self.flow.deferred

    def callees(self, view: FileView, node: ast.Call) -> list[FunctionValue]:
        """The functions of the repository that a call reaches."""
        return sorted(self.flow.callees.get(view.call_site(node), ()), key=lambda value: (value.file, value.index))

    def function_node(self, value: FunctionValue) -> tuple[FileView, ast.AST]:
        """View and syntax node of a function value."""
        view = self.view(value.file)
        facts = self.files[value.file].functions[value.index]
        for node in view.nodes(ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda):
            if node.lineno == facts.line:
                name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
                if name == facts.name:
                    return view, node
        raise ValueError(f"no function {facts.name} at line {facts.line} of {view.path}")

    # --- values -------------------------------------------------------------------------------------------

    def elements(self, values: Sequence[Value]) -> list[Value]:
        """The values and, for containers among them, all they hold at any depth."""
        found: dict[Value, None] = {}
        pending = deque(values)
        while pending:
            value = pending.popleft()
            if value not in found:
                found[value] = None
                if isinstance(value, Container):
                    pending.extend(self._inside(value))
        return list(found)

    def _inside(self, container: Container) -> list[Value]:
        held: dict[Value, None] = {}
        for name in ("[any]", "[*]", "**"):
            held.update(dict.fromkeys(self.attribute(container, name)))
        return list(held)

    def attribute(self, value: Value, name: str) -> list[Value]:
        """What an attribute of a value may hold."""
        number = self.flow.ids.get(value)
        variable = None if number is None else self.flow.fields.get((number, name))
        return [] if variable is None else self.flow.values_of(variable)

    def attributes(self, value: Value) -> dict[str, list[Value]]:
        """All attributes (or elements) of a value that the repository writes or reads, by name."""
        if self._attributes is None:
            self._attributes = {}
            for (number, name), variable in self.flow.fields.items():
                self._attributes.setdefault(number, {})[name] = variable
        held = self._attributes.get(self.flow.ids.get(value, -1), {})
        return {name: self.flow.values_of(variable) for name, variable in held.items()}

    # --- provenance ---------------------------------------------------------------------------------------

    def provenance(self, view: FileView, node: ast.AST, value: Value) -> tuple[Step, ...]:
        """The chain from where ``value`` was made to ``node``, one step a place, as people read it."""
        return self.chain_steps(view.variable(node), value, view, node)

    def chain_steps(self, variable: int, value: Value, view: FileView, node: ast.AST) -> tuple[Step, ...]:
        places: list[tuple[str, int]] = [(view.path, view.line(node))]
        for step in self.flow.chain(variable, value):
            step = self.flow.variable_in_text(step)
            file = self.file_of_variable(step)
            if file is None:
                continue
            line = self.files[file].lines[step - self.flow.variable_offsets[file]]
            if line:
                places.append((self.files[file].path, line))
        ordered: list[tuple[str, int]] = []
        for place in reversed(places):
            if not ordered or ordered[-1] != place:
                ordered.append(place)
        return tuple(Step(file, line, self.line_text(file, line)) for file, line in ordered)

    def line_text(self, file: str, line: int) -> str:
        """One line of a file, without indentation."""
        lines = self._load(file).lines
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""


def owner_of(value: Value) -> Value:
    """The model or optimizer that a derived value was taken from, at any depth; the value itself otherwise."""
    while isinstance(value, Derived):
        value = value.owner  # pyright: ignore[reportAssignmentType]
    return value
