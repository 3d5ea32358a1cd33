"""What the places that switch gradient synchronisation become: calls of ``set_requires_gradient_sync``.

FSDP2 has one switch on the model, read when the backward pass reaches it, and it keeps its setting. So a context
manager becomes a call before the backward and, where nothing else sets the switch, one behind it.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ..analysis.symbols import FSDP_MODULE
from ..analysis.values import External
from ..migration import Migration
from ..rule import Outcome
from ..sites import Site
from ..text.definitions import defined_before
from ..text.patches import Part, Patch
from ..view import FileView

WHY = "set_requires_gradient_sync is FSDP2's switch"
HELPER = "no_gradient_sync"

_HELPER_BODY = '''\
def {name}(model):
    """Gradients of backward passes inside stay on their rank; the first one outside reduces them all."""
{first}    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
'''

_OF_DDP = """\
    if not isinstance(model, {module}):
        with model.no_sync():
            yield
        return
"""


def switch(receiver: Part, value: Part | tuple[Part, ...]) -> list[Part]:
    """``receiver.set_requires_gradient_sync(value)``."""
    values = value if isinstance(value, tuple) else (value,)
    return [receiver, ".set_requires_gradient_sync(", *values, ")"]


def as_helper(site: Site, migration: Migration, outcome: Outcome, receiver: ast.expr) -> None:
    """Puts a restoring context manager where ``model.no_sync`` or ``model.no_sync()`` stands."""
    view = site.view
    name = add_helper(view, migration, outcome)
    if site.call is not None:
        outcome.patches.append(view.replace(site.call, (f"{name}(", view.keep(receiver), ")"), WHY))
    else:
        partial = migration.use(outcome, view, "functools.partial", site.node)
        parts = (f"{partial}({name}, ", view.keep(receiver), ")")
        outcome.patches.append(view.replace(site.node, parts, WHY))


def add_helper(view: FileView, migration: Migration, outcome: Outcome) -> str:
    """Defines the context manager once in a file, before its first function or class."""
    names = {n.name for n in view.nodes(ast.FunctionDef, ast.ClassDef)}
    name = next(n for n in (HELPER, "without_gradient_sync", "local_gradients") if n not in names)
    place = first_definition(view)
    manager = migration.use(outcome, view, "contextlib.contextmanager", view.tree)
    first = _OF_DDP.format(module=migration.use(outcome, view, FSDP_MODULE, view.tree)) if view.program.keeps_ddp else ""
    parts = (f"@{manager}\n" + _HELPER_BODY.format(name=name, first=first),)
    outcome.patches.append(defined_before(view, place, parts, "a context manager that restores the switch"))
    return name


def first_definition(view: FileView) -> ast.stmt:
    """The statement before which a helper is defined: the first function or class, or a use outside of any."""
    body = view.tree.body
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return statement
        if any(_names_no_sync(node) for node in ast.walk(statement)):
            return statement
    return body[-1]


def _names_no_sync(node: ast.AST) -> bool:
    """``model.no_sync``, or the string that ``getattr`` takes for it."""
    named = node.attr if isinstance(node, ast.Attribute) else node.value if isinstance(node, ast.Constant) else None
    return named == "no_sync"


def without_item(view: FileView, statement: ast.With, item: ast.withitem) -> Patch:
    """Takes one of several context managers out of a ``with``."""
    text, items = view.source.text, statement.items
    position = items.index(item)
    start, end = view.source.span(item.context_expr)
    if position + 1 < len(items):
        following = view.source.span(items[position + 1].context_expr)[0]
        start -= _own_parentheses(text[end:following])
        end = text.index(",", end) + 1
        end += len(text[end:]) - len(text[end:].lstrip())
    else:
        previous = items[position - 1]
        before = view.source.span(previous.optional_vars or previous.context_expr)[1]
        end += _own_parentheses(text[before:start])
        start = before + text[before:start].index(",")
    return Patch(view.path, start, end, (), WHY)


def _own_parentheses(between: str) -> int:
    """How many parentheses around one item lie on this side of the comma between two."""
    return max(between.partition(",")[0].count(")"), between.partition(",")[2].count("("))


def in_try(view: FileView, statement: ast.With, off: Sequence[Part], on: Sequence[Part]) -> list[Patch]:
    """``with model.no_sync():`` as try and finally: its body may be left early, the switch must not stay off."""
    indent = view.indent(statement)
    start = view.source.span(statement)[0]
    colon = view.source.text.index(":", view.source.span(statement.items[0].context_expr)[1])
    deeper = [part.replace("\n", "\n    ") if isinstance(part, str) else part for part in on]
    return [
        Patch(view.path, start, colon + 1, (*off, f"\n{indent}try:"), WHY),
        view.insert_after(statement, (f"{indent}finally:\n{indent}    ", *deeper, "\n"), WHY),
    ]


def stays_unsharded(site: Site) -> bool:
    """Whether FSDP1 kept the parameters of the site's model gathered over a window of ``no_sync`` (SHARD_GRAD_OP)."""
    wraps = site.group.wraps if site.group else []
    names: set[str] = set()
    for wrap in wraps:
        for keyword in wrap.node.keywords:
            if keyword.arg == "sharding_strategy":
                names |= {value.name for value in wrap.view.values(keyword.value) if isinstance(value, External)}
    return bool(names) and all(name.endswith((".SHARD_GRAD_OP", "._HYBRID_SHARD_ZERO2")) for name in names)
