"""Which files can come to a wrap when they are run: one that only imports a library with a wrap in it may never call that.

The way back from the wraps is read off names: who can run a function or class has to mention it, at any depth, and to
import its file. What is called by names that are put together, or imported by such, counts as mentioned.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from ..facts.facts import NOTHING
from ..flow.values import ClassValue
from .file import File
from .program import Program
from .programs import Programs
from .visible_callers import CALLED_BY_TORCH, HARMLESS_BASES, HARMLESS_DECORATORS


class Definition(NamedTuple):
    """A function, class or variable at module level, or a method that nothing but its name leads to."""

    file: int
    name: str
    is_method: bool = False


class WrapReach:
    """Answers for files, given the places where something is wrapped, or a wrapper is handed on."""

    def __init__(self, program: Program, programs: Programs, wraps: Iterable[tuple[File, ast.AST]]) -> None:
        self.program = program
        self.programs = programs
        self._run: set[int] = set()
        """Files that may come to a wrap when they are run."""
        self._imported: set[int] = set()
        """Files that may do so for whoever imports them: nobody sees who calls what they define."""
        self._known: set[Definition] = set()
        self._nodes_of_words: dict[int, dict[str, list[ast.AST]]] = {}
        self._of_own_code: dict[ClassValue, bool] = {}
        self._defined: dict[tuple[ast.AST, ast.AST | None], Sequence[Definition]] = {}
        self._unmentioned: set[Definition] = set()
        """Definitions that lead to a wrap and whose names nobody says: only code from outside could use them."""
        self._spread(wraps)

    def may_wrap(self, path: str) -> bool:
        """Whether something may be wrapped while this file is run."""
        return self.program.index(path) in self._wrapping

    def imports_by_name(self, path: str) -> bool:
        """Whether running this file may import what no import statement names."""
        return self.program.index(path) in self._importing_by_name

    def unused(self) -> list[tuple[int, str]]:
        """Files and names of the definitions with which all ways to the wraps begin, where no file says their names."""
        if self._run or self._imported or any(map(self._is_said_elsewhere, self._known)):
            return []
        return [(definition.file, definition.name) for definition in self._unmentioned]

    def _is_said_elsewhere(self, definition: Definition) -> bool:
        """Whether a name stands in a file that does not import the definition, or besides it if nothing uses that."""
        texts = [self.program.text(facts.path) for facts in self.program.facts]
        counts = [len(re.findall(rf"\b{re.escape(definition.name)}\b", text)) for text in texts]
        if definition in self._unmentioned:
            return sum(counts) > 1
        importing = self.programs.reaching(definition.file)
        return any(count and index not in importing for index, count in enumerate(counts))

    @cached_property
    def _wrapping(self) -> frozenset[int]:
        importing = (self.programs.reaching(index) for index in self._imported.union(d.file for d in self._unmentioned))
        return self._importing_by_name.union(self._run, *importing)

    @cached_property
    def _importing_by_name(self) -> frozenset[int]:
        found = filter(self.programs.imports_by_name, range(len(self.program.facts)))
        return frozenset[int]().union(*map(self.programs.reaching, found))

    def _spread(self, wraps: Iterable[tuple[File, ast.AST]]) -> None:
        pending = [definition for file, node in wraps for definition in self._around(file, node)]
        while pending:
            definition = pending.pop()
            if definition in self._known:
                continue
            self._known.add(definition)
            mentions = [*self._mentions(definition)]
            if self._is_called_by_name(definition):
                self._imported.add(definition.file)
            elif not mentions:
                self._unmentioned.add(definition)
            pending += [around for file, node in mentions for around in self._around(file, node)]

    def _around(self, file: File, node: ast.AST) -> Sequence[Definition]:
        """What has to be mentioned so that a place is reached; the file itself is noted if running it is enough."""
        above = [node, *file.ancestors(node)]
        top = above[-2] if len(above) > 1 else node
        if isinstance(top, ast.alias | ast.Import | ast.ImportFrom):
            return [Definition(file.index, node.asname)] if isinstance(node, ast.alias) and node.asname else []
        inner = above[-3] if len(above) > 2 else None
        if (top, inner) not in self._defined:
            self._defined[top, inner] = list(self._defined_by(file, top, inner))
        return self._defined[top, inner]

    def _defined_by(self, file: File, top: ast.AST, inner: ast.AST | None) -> Iterator[Definition]:
        """The names that a statement of a module defines, or a method in it: what is in it is reached by them."""
        if isinstance(top, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not all(HARMLESS_DECORATORS.fullmatch(ast.unparse(decorator)) for decorator in top.decorator_list):
                self._imported.add(file.index)
            by_name = isinstance(inner, ast.FunctionDef) and self._is_called_by_own_code(file, top, inner)
            yield Definition(file.index, inner.name if by_name else top.name, by_name)  # type: ignore[union-attr]
        elif _is_for_scripts(top):
            self._run.add(file.index)
        else:
            targets = [name.id for name in ast.walk(top) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)]
            if not targets or any(isinstance(inner, ast.Call) for inner in ast.walk(top)):
                self._imported.add(file.index)
            yield from (Definition(file.index, name) for name in targets if name != "__all__")

    def _is_called_by_own_code(self, file: File, cls: ast.AST, method: ast.FunctionDef) -> bool:
        """Whether nothing runs a method but code that says its name: no base from outside does, here or below."""
        if not isinstance(cls, ast.ClassDef) or method.name in CALLED_BY_TORCH or method.name.startswith("__"):
            return False
        if not all(HARMLESS_DECORATORS.fullmatch(ast.unparse(decorator)) for decorator in method.decorator_list):
            return False
        own = [v for v in file.values(cls) if isinstance(v, ClassValue)]
        return bool(own) and all(map(self._descends_from_own_code, own))

    def _descends_from_own_code(self, cls: ClassValue) -> bool:
        """Whether a class, and all that inherit it, have no base from outside that may call their methods."""
        if cls not in self._of_own_code:
            external_bases = self.program.flow.external_bases
            related = [cls, *self._heirs.get(cls, ())]
            self._of_own_code[cls] = all(map(self._has_known_bases, related)) and all(
                base.startswith(HARMLESS_BASES) for heir in related for base in external_bases(heir)
            )
        return self._of_own_code[cls]

    def _has_known_bases(self, cls: ClassValue) -> bool:
        flow = self.program.flow
        found = [flow.files[c.file].classes[c.index].bases for c in flow.ancestors(cls)]
        offsets = [flow.variable_offsets[c.file] for c in flow.ancestors(cls)]
        return all(base != NOTHING and flow.values_of(base + offset) for bases, offset in zip(found, offsets, strict=True)
                   for base in bases)  # fmt: skip

    @cached_property
    def _heirs(self) -> dict[ClassValue, list[ClassValue]]:
        """The classes that inherit each class, by whatever way."""
        flow = self.program.flow
        found: dict[ClassValue, list[ClassValue]] = {}
        for number, file in enumerate(flow.files):
            for index in range(len(file.classes)):
                heir = ClassValue(number, index)
                for ancestor in flow.ancestors(heir):
                    found.setdefault(ancestor, []).append(heir)
        return found

    def _mentions(self, definition: Definition) -> Iterator[tuple[File, ast.AST]]:
        index, name, is_method = definition
        reaching = None if is_method else self.programs.reaching(index)
        for other in self.program.files_by_word.get(name, ()):
            if reaching is not None and other not in reaching:
                continue
            file = self.program.file(other)
            is_own = other != index and name in self.program.facts[other].defined and name not in file.imported_names
            for node in self._nodes_by_word(other).get(name, ()):
                if is_own and isinstance(node, ast.Name):
                    continue
                if is_method and isinstance(node, ast.Name | ast.alias) and other != index:
                    continue  # a method is read off an object, but for in its own class
                top = [node, *file.ancestors(node)][-2]
                is_itself = other == index and not is_method and getattr(top, "name", None) == name
                if not is_itself and (not isinstance(node, ast.alias) or node.asname) and not _binds(node):
                    yield file, node

    def _nodes_by_word(self, index: int) -> dict[str, list[ast.AST]]:
        """The nodes of a file that mention each name."""
        if index not in self._nodes_of_words:
            found: dict[str, list[ast.AST]] = {}
            for node in self.program.file(index).nodes(ast.Name, ast.Attribute, ast.Constant, ast.alias):
                word = _word(node)
                if isinstance(word, str):
                    found.setdefault(word, []).append(node)
            self._nodes_of_words[index] = found
        return self._nodes_of_words[index]

    def _is_called_by_name(self, definition: Definition) -> bool:
        facts = self.program.facts[definition.file]
        for function in self.program.flow.called_by_name:
            if function.file == definition.file:
                found = facts.functions[function.index]
                is_function = definition.is_method or found.owner_class == NOTHING
                if (found.name if is_function else facts.classes[found.owner_class].name) == definition.name:
                    return True
        return False


def _word(node: ast.AST) -> object:
    """The name that a node mentions; of a string that is one, too."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.name.rpartition(".")[2] if isinstance(node, ast.alias) else getattr(node, "value", None)


def _binds(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store)


def _is_for_scripts(statement: ast.AST) -> bool:
    """Whether a statement is for the file that is run alone: ``if __name__ == "__main__"``."""
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
    )
