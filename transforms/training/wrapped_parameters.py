"""Tests whether FSDP1 wrapped the module that a parameter is in, asked of the name that FSDP1 gave it.

FSDP2 changes no names, but makes DTensors of exactly those parameters. Where DDP wraps the whole model on other paths,
these are DTensors there as well: then the model itself is what was sharded, and not parts of it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..analysis.scopes import dotted_path
from ..analysis.values import Annotated, Value, Wrapped
from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..program import owner_of
from ..rule import Outcome
from ..sites import Site
from ..view import FileView
from .conditions import FSDP_MODULE, compiles

_DTENSOR = "torch.distributed.tensor.DTensor"
_IGNORING = frozenset({"ignored_modules", "ignored_states", "ignored_parameters"})
_LOOPS = (ast.For, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Named:
    """A name of a parameter in a loop: the parameter beside it, and the model that is asked for both."""

    parameter: str
    model: ast.expr


def asked_of_the_parameter(migration: Migration, site: Site) -> Outcome | None:
    """``"fsdp" in name`` as a question to the parameter; None where it would not be the same one."""
    view, node, group = site.view, site.node, site.group
    assert isinstance(node, ast.Compare) and group is not None
    named = _named(view, node)
    if named is None or _ignores(migration):
        return None
    outcome = Outcome(
        Level.REVIEW,
        f"{view.text(node)} asked whether FSDP1 had wrapped the module that a parameter is in: FSDP2 makes DTensors of "
        "such parameters, and no others",
        "Parameters that are DTensors for another reason, as tensor parallelism makes them, are to be told apart.",
    )
    sharded = f"isinstance({named.parameter}, {migration.use(outcome, view, _DTENSOR, node)})"
    negative = isinstance(node.ops[0], ast.NotIn)
    if "DDP" in group.kinds or any(_kind(value) == "DDP" for value in view.values(named.model)):
        if not _shards_parts_alone(migration, view, named.model, group) or compiles(migration):
            return None
        module = migration.use(outcome, view, FSDP_MODULE, node)
        sharded += f" and not isinstance({view.text(named.model)}, {module})"
        outcome.message += "; where DDP wrapped the whole model, that itself is sharded now, and the answer stays no"
        if negative or not isinstance(view.parents[node], (ast.If, ast.BoolOp, ast.comprehension, ast.While)):
            sharded = f"({sharded})"
    text = f"not {sharded}" if negative else sharded
    outcome.patches.append(view.replace(node, text, "FSDP2 changes no names"))
    return outcome


def _named(view: FileView, node: ast.Compare) -> Named | None:
    """The loop over ``model.named_parameters()`` that a test of a name stands in, if both stay what it gives."""
    name = node.comparators[0]
    if not isinstance(name, ast.Name):
        return None
    for loop in view.ancestors(node):
        if not isinstance(loop, _LOOPS):
            continue
        pairs = [loop] if isinstance(loop, ast.For) else loop.generators
        for pair in pairs:
            names = [part.id for part in getattr(pair.target, "elts", ()) if isinstance(part, ast.Name)]
            if name.id not in names:
                continue
            source = pair.iter
            if len(names) != 2 or names[0] != name.id or not isinstance(source, ast.Call):
                return None
            function = source.func
            if not isinstance(function, ast.Attribute) or function.attr != "named_parameters":
                return None
            if dotted_path(function.value) is None or (isinstance(loop, ast.For) and _changes(loop, names, node)):
                return None
            return Named(names[1], function.value)
    return None


def _changes(loop: ast.For, names: list[str], before: ast.AST) -> bool:
    """Whether a loop's body gives its names other values in front of a place."""
    return any(
        isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store) and inner.id in names
        and inner.lineno < getattr(before, "lineno", 0)
        for statement in loop.body
        for inner in ast.walk(statement)
    )  # fmt: skip


def _ignores(migration: Migration) -> bool:
    """Whether anything in the repository may keep parameters out of the wrapper: their names tell nothing of it."""
    return any(
        any(word in _IGNORING for call in file.calls for word, _ in call.keywords)
        or any(constant in _IGNORING for _, constant in file.constants if isinstance(constant, str))
        for file in migration.program.files
    )


def _shards_parts_alone(migration: Migration, view: FileView, model: ast.expr, group: Group) -> bool:
    """Whether FSDP1 wraps parts of a model, and DDP, where it does, the model itself."""
    asked = {owner_of(value) for value in view.values(model)}
    if any(_kind(value) == "FSDP1" for value in asked):
        return False
    for wrap in group.wraps:
        inside = set(migration.groups.models(migration.program.attribute(wrap.value, "module")))
        is_whole = wrap.value in asked or not inside.isdisjoint(asked)
        if is_whole != (wrap.value.kind == "DDP"):
            return False
    return True


def _kind(value: Value) -> str:
    """What a value is surely wrapped by."""
    return value.kind if isinstance(value, (Wrapped, Annotated)) else ""
