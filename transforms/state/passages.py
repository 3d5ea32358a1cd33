"""What a function says of its model or optimizer, in the words of a caller: ``self.model`` is ``trainer.model`` there."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..analysis.values import FunctionValue, Wrapped
from ..program import Program
from ..text.patches import Old, Part
from ..view import FileView


@dataclass(frozen=True, eq=False)
class Passage:
    """One call of a function."""

    program: Program
    view: FileView
    function: ast.FunctionDef
    caller: FileView
    call: ast.Call

    def outside(self, node: ast.expr | Part | None) -> Part | None:
        """An expression of the function as the caller has to write it; None where it cannot."""
        if isinstance(node, ast.Call):
            return self._of_helper(node)
        path = _path_of_model(self.view, node) if isinstance(node, ast.expr) else node
        if not isinstance(path, str):
            return None
        root, dot, rest = path.partition(".")
        if self._is_local(root):
            value = self._only_value(root)
            inner = self._text(self.outside(value)) if value is not None else None
            return None if inner is None else f"{inner}{dot}{rest}"
        arguments = self.function.args
        if root not in [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]:
            is_global = any(isinstance(n, ast.Name) and n.id == root for n in ast.walk(self.view.tree))
            return path if is_global and self.caller is self.view else None
        argument = self.argument(root)
        if argument is None or (_path_of_model(self.caller, argument) is None and dot):
            return None
        return f"{self.caller.text(argument)}{dot}{rest}" if dot else self.caller.keep(argument)

    def _of_helper(self, call: ast.Call) -> str | None:
        """``unwrap(model)``: where the caller has the helper, too, it calls it with its own name for the model."""
        if len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Starred):
            return None
        if isinstance(call.func, ast.Name):
            name = call.func.id if self._means_the_same(call.func) else None
        else:
            name = self._text(self.outside(call.func))
        argument = self._text(self.outside(call.args[0]))
        return None if name is None or argument is None else f"{name}({argument})"

    def _means_the_same(self, name: ast.Name) -> bool:
        """Whether the caller's file knows a function of the repository by the same name."""
        functions = {value for value in self.view.values(name) if isinstance(value, FunctionValue)}
        scope = self.caller.function(self.call)
        if scope is not None and any(_binds(inner, name.id) for inner in ast.walk(scope)):
            return False
        if self.caller is self.view:
            return bool(functions)
        imported = [
            value
            for node in ast.walk(self.caller.tree)
            if isinstance(node, ast.alias) and (node.asname or node.name) == name.id
            for value in self.caller.values(node)
        ]
        return bool(functions & set(imported))

    def _is_local(self, name: str) -> bool:
        return any(
            isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in ast.walk(self.function)
        )

    def _only_value(self, name: str) -> ast.expr | None:
        """What a local name is assigned, once and in any case; None where it is a parameter, too, or assigned again."""
        stores = [node for node in ast.walk(self.function) if _binds(node, name)]
        if len(stores) != 1:
            return None
        statement = self.view.parents[stores[0]]
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or statement not in self.function.body:
            return None
        return statement.value

    def argument(self, name: str) -> ast.expr | None:
        """The argument that a parameter gets; the receiver for ``self``."""
        arguments, call = self.function.args, self.call
        if self.program.is_applied(self.caller, call):
            return None
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        is_method = self.view.enclosing_class(self.function) is not None and names[:1] == ["self"]
        if is_method and name == "self":
            return call.func.value if isinstance(call.func, ast.Attribute) else None
        for keyword in call.keywords:
            if keyword.arg == name:
                return keyword.value
        place = names.index(name) - (1 if is_method else 0) if name in names else -1
        return call.args[place] if 0 <= place < len(call.args) else None

    def _text(self, part: Part | None) -> str | None:
        return self.caller.source.text[part.start : part.end] if isinstance(part, Old) else part


def _binds(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.arg):
        return node.arg == name
    return isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)


def _path_of_model(view: FileView, node: ast.expr | None) -> str | None:
    """``a.b`` for a chain of attributes, without the ``.module`` of wrappers, which goes."""
    if isinstance(node, ast.Attribute):
        base = _path_of_model(view, node.value)
        is_unwrapping = node.attr == "module" and any(isinstance(v, Wrapped) for v in view.values(node.value))
        return base if base is None or is_unwrapping else f"{base}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None
