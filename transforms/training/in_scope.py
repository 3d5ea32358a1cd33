"""Names for things that generated code needs: how to refer to a group's model or optimizer at a place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ..analysis.scopes import dotted_path
from ..analysis.symbols import DATA_PARALLEL
from ..analysis.values import Annotated, Kept, Opaque, Optimizer, Unknown, Value, Wrapped
from ..groups import Group, Groups
from ..keeping import may_be_kept
from ..text.patches import Old
from ..text.spelling import quoted
from ..view import FileView
from .unwrapping_helpers import unwrapping_helper

_MODEL_NAME = re.compile(r"model|net|module|generator|discriminator|student|teacher|backbone|gpt|bert", re.IGNORECASE)

_OF_A_MODEL = re.compile(r"(config|cfg|args|state|names?|path|dir|type)$", re.IGNORECASE)
"""Ends of names that say model, too, and mean something that belongs to one."""


def means_a_model(values: Iterable[Value], name: str) -> bool:
    """Whether values that may be a model surely are one or, where little is known of them, their name says so."""
    unclear = [isinstance(v, Unknown) or (isinstance(v, Opaque) and v.name == "?") for v in values]
    is_called_so = bool(_MODEL_NAME.search(name)) and not _OF_A_MODEL.search(name)
    return bool(unclear) and (not all(unclear) or is_called_so)


def model_at(groups: Groups, view: FileView, node: ast.AST, group: Group) -> str | None:
    """An expression for the group's model that is valid at ``node``; the wrapped one is preferred."""
    best: tuple[int, str] | None = None
    given = {wrap.view.text(argument) for wrap in group.wraps for argument in wrap.node.args[:1]}
    for path, values in _paths(view, node):
        own = [v for v in values if groups.of([v]) is group and (v in group.raw or isinstance(v, (Wrapped, Annotated)))]
        if not own:
            continue
        if not means_a_model(own, path.removesuffix(".module").rpartition(".")[2]):
            continue
        rank = 0 if any(isinstance(v, (Wrapped, Kept, Annotated)) for v in own) else 1
        rank += 2 * (path not in given) + 4 * (len(own) < len(values)) + 8 * (path.count(".") > 1)
        if best is None or rank < best[0]:
            best = (rank, path)
    return best[1] if best else None


def inside_data_parallel(view: FileView, node: ast.AST, path: str) -> str:
    """An expression for the model at a path that torch.nn.DataParallel may wrap in the function around ``node``.

    Optimizer state is kept by the names of parameters, and those of its wrapper begin with ``module.``. What is wrapped
    further down counts, too: statements on optimizers move behind that.
    """
    held = next((values for found, values in _paths(view, node, in_all=True) if found == path), [])
    if not any(isinstance(value, Opaque) and value.name in DATA_PARALLEL for value in held):
        return path
    helper = unwrapping_helper(view, node)
    return f"{helper}({path})" if helper else f"getattr({path}, {quoted(view, 'module')}, {path})"


def holds_ddp(view: FileView, node: ast.AST, model: object) -> bool:
    """Whether an expression, a node or a path at ``node``, is the wrapper where a model stays under DDP."""
    if isinstance(model, ast.expr):
        return may_be_kept(view.values(model))
    if isinstance(model, Old):
        model = view.source.text[model.start : model.end]
    return any(path == model and may_be_kept(values) for path, values in _paths(view, node))


def optimizer_at(view: FileView, node: ast.AST, group: Group) -> str | None:
    """An expression for an optimizer of the group that is valid at ``node``."""
    found = [
        path
        for path, values in _paths(view, node)
        if any(isinstance(value, Optimizer) and value in group.optimizers for value in values)
    ]
    return min(found, key=lambda path: path.count(".")) if found else None


def _paths(view: FileView, node: ast.AST, *, in_all: bool = False) -> Iterator[tuple[str, list[Value]]]:
    """Names and attribute paths that are bound where ``node`` is evaluated, with all they may have held till there.

    With ``in_all``, what they hold anywhere in the functions around it.
    """
    found: dict[str, list[Value]] = {}
    function = view.function(node)
    line = view.line(node)
    scope = function
    while scope is not None:
        for inner in ast.walk(scope):
            if isinstance(inner, ast.arg) and view.function(inner) is scope:
                found.setdefault(inner.arg, []).extend(view.values(inner))
            elif isinstance(inner, (ast.Name, ast.Attribute)) and view.function(inner) is scope:
                if in_all or inner.lineno < line:
                    _add(found, view, inner)
        scope = view.function(scope)
    for inner in _attributes_of_self(view, node):
        _add(found, view, inner)
    local = set(found)
    for inner in view.nodes(ast.Name):
        if inner.id in local or view.function(inner) is not None:
            continue
        if (function is not None or inner.lineno < line) and view.enclosing_class(inner) is None:
            _add(found, view, inner)
    for path, values in found.items():
        if values:
            yield path, list(dict.fromkeys(values))


def _add(found: dict[str, list[Value]], view: FileView, node: ast.Name | ast.Attribute) -> None:
    path = dotted_path(node)
    if path is not None and not _inside_comprehension(view, node):
        found.setdefault(path, []).extend(view.values(node))


def _attributes_of_self(view: FileView, node: ast.AST) -> Iterator[ast.Attribute]:
    """``self.…`` as the methods of the class around a place use it."""
    owner = view.enclosing_class(node)
    arguments = getattr(getattr(view.function(node), "args", None), "args", None)
    if owner is None or not arguments or arguments[0].arg != "self":
        return
    for inner in ast.walk(owner):
        if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id == "self":
            yield inner


def _inside_comprehension(view: FileView, node: ast.AST) -> bool:
    for ancestor in view.ancestors(node):
        if isinstance(ancestor, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            return True
        if isinstance(ancestor, ast.stmt):
            return False
    return False
