"""What comments say of names that the analysis cannot follow: `# to-fsdp2: sharded` or `plain` where one is bound."""

from __future__ import annotations

import ast

from ..text.suppressions import Said, Suppressions
from .answers import Answer
from .file import File, Function

_MEANING = {"sharded": Answer.YES, "plain": Answer.NO}


class SaidByComments:
    """Answers for expressions of one file."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.comments = Suppressions(file.source).said if Suppressions.MARK in file.source.text else []
        self._by_line = {said.about: said for said in self.comments}

    def of(self, node: ast.AST) -> Answer | None:
        """Whether a name or an attribute is said to hold a sharded model; None where nothing is said of each of its bindings."""
        if not self.comments or not isinstance(node, (ast.Name, ast.Attribute)):
            return None
        said = [self._by_line.get(binding.lineno) for binding in self._bindings(node)]
        words = {comment.word if comment is not None else "" for comment in said}
        return _MEANING.get(words.pop()) if len(words) == 1 else None

    def is_of_a_name(self, said: Said) -> bool:
        """Whether any name is bound on the line that a comment speaks for."""
        bound = (node for bindings in self.file.bindings.values() for node in bindings)
        arguments = self.file.nodes(ast.arg)
        return any(node.lineno == said.about for node in (*bound, *arguments))

    def _bindings(self, node: ast.Name | ast.Attribute) -> list[ast.Name | ast.Attribute | ast.arg]:
        """Where a name is bound that an expression reads: in the innermost function that binds it; an attribute in its class."""
        found: list[ast.Name | ast.Attribute | ast.arg] = list(self.file.bindings.get(ast.unparse(node), ()))
        if isinstance(node, ast.Attribute):
            around = self.file.enclosing_class(node)
            return [binding for binding in found if self.file.enclosing_class(binding) is around]
        found += [argument for argument in self.file.nodes(ast.arg) if argument.arg == node.id]
        scope: ast.AST | None = node
        while scope is not None:
            scope = self.file.function(scope)
            inside = [binding for binding in found if self._scope(binding) is scope]
            if inside:
                return inside
        return []

    def _scope(self, binding: ast.AST) -> Function | None:
        return self.file.function(binding)


class SaidNames:
    """Answers for expressions of all files."""

    def __init__(self) -> None:
        self._files: dict[int, SaidByComments] = {}

    def of(self, file: File, node: ast.AST) -> Answer | None:
        """What the comments of a file say of an expression."""
        if file.index not in self._files:
            self._files[file.index] = SaidByComments(file)
        return self._files[file.index].of(node)
