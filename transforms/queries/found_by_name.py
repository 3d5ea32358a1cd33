"""Functions that code may find by a name which it puts together, reads from a configuration, or asks of what was made so."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import PurePosixPath

from ..flow.values import Instance, ModuleValue
from .file import File
from .names_at_run_time import finds_by_name, imports_by_name
from .program import Program

_BY_NAME = frozenset({"getattr", "attrgetter", "eval", "exec", "globals", "vars", "locals"})
NAMES_PUT_TOGETHER = re.compile(
    r"__dict__\s*\[|\bgetattr\([\w.]+,\s*[^\"'\s]|attrgetter|methodcaller|(?<![\w.])(?:eval|exec)\(|\b(?:globals|vars)\("
)
"""What code says that finds a function by a name which it does not say in full."""
_NAMED_IN_CONFIGURATIONS = r"\bhydra\b|\binstantiate\(|\blocate\("


class FoundByName:
    """Answers for one repository."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def may_find(self, path: str, name: str) -> bool:
        """Whether something may find a function of this name in a file, besides by the name in full."""
        if path in self._searched or any(name.startswith(piece) or name.endswith(piece) for piece in self._pieces):
            return True
        if path in self._importing_by_name or (self._makes_by_name and name in self._attributes):
            return True
        return self._reads_configurations and self.program.is_said(name)

    @cached_property
    def _importing_by_name(self) -> frozenset[str]:
        return frozenset(path for path, text in self.program.all_texts.items() if imports_by_name(self.program, text))

    @cached_property
    def _makes_by_name(self) -> bool:
        """Whether objects and modules may come from names that no code shows: what they have is called by whoever gets them."""
        return any(finds_by_name(self.program, text) for text in self.program.all_texts.values())

    @cached_property
    def _attributes(self) -> frozenset[str]:
        """The names that are read off something."""
        return frozenset(name for text in self.program.all_texts.values() for name in re.findall(r"\.\s*(\w+)", text))

    @cached_property
    def _reads_configurations(self) -> bool:
        return any(re.search(_NAMED_IN_CONFIGURATIONS, text) for text in self.program.all_texts.values())

    @cached_property
    def _files(self) -> list[File]:
        return [self.program.file(index) for index in self.program.relevant_files()]

    @cached_property
    def _searched(self) -> frozenset[str]:
        """The files in which functions are looked for by names that no code says."""
        found = {path for file in self._files for path in self._searched_by(file)}
        looked_at = {file.path for file in self._files}
        others = (text for path, text in self.program.all_texts.items() if path not in looked_at)
        for text in filter(NAMES_PUT_TOGETHER.search, others):
            words = set(re.findall(r"\w+", text))
            found.update(facts.path for facts in self.program.facts if PurePosixPath(facts.path).stem in words)
        return frozenset(found)

    def _searched_by(self, file: File) -> Iterator[str]:
        for node in file.nodes(ast.Call, ast.Attribute):
            if isinstance(node, ast.Attribute):
                owners = [node.value] if node.attr == "__dict__" else []
            elif getattr(node.func, "id", "") not in _BY_NAME or _names_constant(node):
                continue
            elif node.func.id == "getattr" and node.args:  # type: ignore[attr-defined]
                owners = node.args[:1]
            else:  # globals(), eval(text)
                yield file.path
                owners = list(file.nodes(ast.Name))
            for values in map(file.values, owners):
                yield from (self.program.facts[v.file].path for v in values if isinstance(v, ModuleValue))
                is_known = any(isinstance(v, (ModuleValue, Instance)) for v in values)
                if len(owners) == 1 and imports_by_name(self.program, file.source.text) and not is_known:
                    yield from (facts.path for facts in self.program.facts)

    @cached_property
    def _pieces(self) -> frozenset[str]:
        """What names are put together from: ``train_`` of ``f"train_{mode}"``."""
        found: set[str] = set()
        for file in self._files:
            for node in file.nodes(ast.JoinedStr, ast.BinOp):
                parts = node.values if isinstance(node, ast.JoinedStr) else [node.left, node.right]
                found.update(part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))
        return frozenset(piece for piece in found if re.fullmatch(r"_\w{2,}|\w{2,}_", piece))


def _names_constant(call: ast.Call) -> bool:
    return len(call.args) > 1 and isinstance(call.args[1], ast.Constant)
