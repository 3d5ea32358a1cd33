"""``FSDP(model, **kwargs)`` with keywords from outside the repository: they go to ``fully_shard`` as they are.

FSDP1 and ``fully_shard`` have no argument of one name in common, so whatever an old configuration brings raises a
TypeError where the model is sharded; nothing is taken for something else.
"""

from __future__ import annotations

import ast

from ..analysis.scopes import dotted_path
from ..analysis.values import Container, Opaque
from ..text.patches import Patch
from ..view import FileView
from .additions import entry
from .constructor import PARAMETERS, Argument, Constructor, translate
from .plan import code

_WITHOUT_TRACE = ("limit_all_gathers", "use_orig_params", "backward_prefetch", "forward_prefetch", "device_id")
_WHY = "fully_shard has no such argument, and needs none"


def read_open(constructor: Constructor, keyword: ast.keyword) -> bool:
    """Hands the keywords on, without those that the repository adds and nothing needs any more.

    False where the repository itself puts other arguments of FSDP1 into the dictionary: they are to be translated.
    """
    view = constructor.view
    if any(_is_of_the_repository(value) for value in view.values(keyword.value)):
        return False
    added = _additions(view, keyword.value)
    if not _known(constructor, keyword.value) <= added.keys():
        return False
    arguments = {name: Argument(name, view, value) for name, (_, value) in added.items()}
    before = dict(constructor.arguments)
    constructor.arguments.update(arguments)
    translate(constructor, arguments)
    constructor.arguments = before
    if constructor.sets_device or "mesh" in constructor.plan.arguments:
        return False
    constructor.patches.extend(patch for statement, _ in added.values() for patch in _without(view, statement))
    constructor.from_dictionaries.extend(added)
    constructor.plan.extras.append(code("**", view.keep(keyword.value)))
    return True


def _is_of_the_repository(value: object) -> bool:
    """Whether the keys of a dictionary are the fields of a class: those are arguments of FSDP1."""
    return isinstance(value, Opaque) and value.name.startswith(("dataclasses.", "builtins."))


def _known(constructor: Constructor, node: ast.expr) -> set[str]:
    """The arguments of FSDP1 that the repository is seen to put into a dictionary."""
    flow = constructor.program.flow
    numbers = {flow.identify(v) for v in constructor.view.values(node) if isinstance(v, Container)}
    keys = {name[1:-1] for number, name in flow.fields if number in numbers and name.startswith("[")}
    return keys & {*PARAMETERS, "ignored_parameters"}


def _additions(view: FileView, node: ast.expr) -> dict[str, tuple[ast.stmt, ast.expr]]:
    """Statements that surely run before the wrap and add an argument that leaves no trace."""
    found: dict[str, tuple[ast.stmt, ast.expr]] = {}
    path = dotted_path(node)
    statement = view.statement(node)
    while path is not None and not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        block, place = view.block_of(statement)
        for earlier in block[:place]:
            inner = earlier.body[0] if isinstance(earlier, ast.If) and _is_alone(earlier) else earlier
            addition = entry(inner, path)
            if addition is not None and addition[0] in _WITHOUT_TRACE:
                found[addition[0]] = (earlier, addition[1])
        parent = view.parents[statement]
        if not isinstance(parent, ast.stmt):
            break
        statement = parent
    return found


def _is_alone(branch: ast.If) -> bool:
    return len(branch.body) == 1 and not branch.orelse and dotted_path(branch.test) is not None


def _without(view: FileView, statement: ast.stmt) -> list[Patch]:
    if not view.stands_alone(statement):
        return [view.replace(statement, "pass", _WHY)]
    return [view.delete(statement, _WHY)]
