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

    def bound_by(self, said: Said) -> list[ast.expr | ast.arg]:
        """What the names are bound to on the line that a comment speaks for: each value that it may be, or the name itself."""
        names = [node for bindings in self.file.bindings.values() for node in bindings if node.lineno == said.about]
        found: list[ast.expr | ast.arg] = [node for node in self.file.nodes(ast.arg) if node.lineno == said.about]
        for name in names:
            parent = self.file.parents[name]
            is_assigned = isinstance(parent, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and parent.value is not None
            found += _alternatives(parent.value) if is_assigned else [name]  # type: ignore[union-attr,arg-type]
        return found

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


def _alternatives(value: ast.expr) -> list[ast.expr]:
    """The expressions of which an expression gives one."""
    if isinstance(value, ast.IfExp):
        return [*_alternatives(value.body), *_alternatives(value.orelse)]
    return [part for inner in value.values for part in _alternatives(inner)] if isinstance(value, ast.BoolOp) else [value]


class SaidNames:
    """Answers for expressions of all files."""

    def __init__(self) -> None:
        self._files: dict[int, SaidByComments] = {}

    def of(self, file: File, node: ast.AST) -> Answer | None:
        """What the comments of a file say of an expression."""
        if file.index not in self._files:
            self._files[file.index] = SaidByComments(file)
        return self._files[file.index].of(node)
