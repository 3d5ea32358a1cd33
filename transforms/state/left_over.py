"""Models by names that a loop left behind: beside one optimizer of many, such a name is that of another's model."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..text.patches import Part
from ..view import FileView

LEFT_OVER = "this is one optimizer of several, and the name at hand for a model is what an earlier loop ended with"
PAIRED = "Go over the models and their optimizers together: for model, optimizer in zip(models, optimizers)."

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def is_left_over(view: FileView, call: ast.AST, optimizer: object, model: ast.expr | Part | None) -> bool:
    """Whether ``optimizer`` is met in a loop, a comprehension or a lambda, and ``model`` is a variable of a loop before."""
    if not isinstance(optimizer, ast.expr) or not isinstance(model, str):
        return False
    name = model.partition(".")[0]
    loops = [node for node in view.nodes(ast.For) if name in _names(node.target) and _is_seen_from(view, node, call)]
    around = set(view.ancestors(call))
    if not loops or any(loop in around for loop in loops):
        return False
    given = view.names_in(optimizer)
    return any(given & bound for bound in _bound_around(view, call))


def _bound_around(view: FileView, node: ast.AST) -> Iterator[set[str]]:
    """What each loop, comprehension and lambda around a place calls its elements or arguments."""
    for ancestor in view.ancestors(node):
        if isinstance(ancestor, ast.For):
            yield _names(ancestor.target)
        elif isinstance(ancestor, _COMPREHENSIONS):
            yield from (_names(generator.target) for generator in ancestor.generators)
        elif isinstance(ancestor, ast.Lambda):
            yield {argument.arg for argument in ancestor.args.args}


def _names(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def _is_seen_from(view: FileView, loop: ast.For, node: ast.AST) -> bool:
    """Whether the variables of a loop are those of the scope of a place, or of one around it."""
    scope = view.function(loop)
    return scope is None or scope in set(view.ancestors(node))
