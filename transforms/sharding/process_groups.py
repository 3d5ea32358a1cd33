"""Pairs of process groups that come to a wrap by a variable: the variable holds a mesh instead."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..findings import Level
from ..rule import Outcome
from ..text.patches import Part
from ..view import FileView
from .constructor import Argument, Constructor
from .groups_of_state import stores_for_state
from .mesh_text import mesh_of_pair, node_mesh
from .plan import Code, Name

NODE_GROUPS = "torch.distributed.fsdp._init_utils._init_intra_and_inter_node_groups"
_WHY = "a mesh in the place of two process groups"


@dataclass
class _Variable:
    """A local name, the pairs and other values that are assigned to it, and the one place that reads it."""

    stores: list[ast.Name]
    pairs: list[ast.Tuple]


def mesh_in_variable(constructor: Constructor, argument: Argument) -> Outcome | None:
    """Rewrites the assignments of a pair, which nothing but this argument reads; None where something else does."""
    view, node = argument.view, argument.node
    if not isinstance(node, ast.Name) or argument.written is not None or view is not constructor.view:
        return None
    found = _variable(view, node)
    if found is None:
        return None
    for pair in found.pairs:
        groups = _node_groups(view, pair)
        mesh = _node_mesh(constructor, groups, pair) if groups is not None else mesh_of_pair(constructor, pair)
        constructor.patches.append(view.replace(pair, _parts(mesh, view.indent(pair)), _WHY))
    name = view.free_name(node, "mesh")
    if name == "mesh":
        constructor.patches.extend(view.replace(store, name, _WHY) for store in found.stores)
    constructor.plan.arguments["mesh"] = (name if name == "mesh" else node.id,)
    return Outcome(
        Level.REVIEW,
        "the pair of process groups becomes a mesh of two dimensions: FSDP1 takes (shard, replicate), a mesh is "
        "(replicate, shard) and assumes that ranks of one shard group follow each other",
    )


def _variable(view: FileView, use: ast.Name) -> _Variable | None:
    scope = view.function(use)
    if scope is None:
        return None
    found = _Variable([], [])
    for mention in (n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == use.id and n is not use):
        statement = view.statement(mention)
        if not isinstance(statement, ast.Assign) or statement.targets != [mention]:
            return None
        value = statement.value
        if isinstance(value, ast.Tuple) and len(value.elts) == 2:
            found.pairs.append(value)
        elif not (isinstance(value, ast.Constant) and value.value is None):
            return None
        found.stores.append(mention)
    return found if found.pairs else None


# --- _init_intra_and_inter_node_groups ----------------------------------------------------------------------


def _node_groups(view: FileView, pair: ast.Tuple) -> ast.Assign | None:
    """The assignment of the groups of this node and across nodes in the same block that a pair puts together."""
    block, place = view.block_of(view.statement(pair))
    for statement in block[:place]:
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.value, ast.Call)
            and view.external(statement.value.func) == NODE_GROUPS
            and [view.text(target) for target in _targets(statement)] == [view.text(e) for e in pair.elts]
            and view.stands_alone(statement)
        ):
            return statement
    return None


def _targets(statement: ast.Assign) -> list[ast.expr]:
    target = statement.targets[0]
    return target.elts if len(statement.targets) == 1 and isinstance(target, ast.Tuple) else []


def _node_mesh(constructor: Constructor, groups: ast.Assign, pair: ast.Tuple) -> Code:
    """A mesh in the place of the groups; those that something else uses are read off it."""
    view = constructor.view
    name = view.free_name(groups, "node_mesh")
    indent = view.indent(groups)
    parts: list[Part] = [f"{name} = ", *_parts(node_mesh(constructor), indent)]
    read = [
        f'\n{indent}{view.text(target)} = {name}.get_group("{dimension}")'
        for target, dimension in zip(_targets(groups), ("shard", "replicate"), strict=True)
        if _is_read(constructor, target, pair)
    ]
    if not read:
        constructor.patches.append(view.delete(groups, _WHY))
        return node_mesh(constructor)
    constructor.patches.append(view.replace(groups, [*parts, *read], _WHY))
    return (name,)


def _is_read(constructor: Constructor, target: ast.expr, pair: ast.Tuple) -> bool:
    """Whether anything but the pair reads a group; where that is only FSDP1's optimizer state, it goes."""
    view = constructor.view
    if not isinstance(target, ast.Name):
        return True
    scope = view.function(target) or view.tree
    loads = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == target.id and isinstance(n.ctx, ast.Load)]
    others = [view.statement(load) for load in loads if load not in pair.elts]
    stores = [stores_for_state(constructor.program, view, statement) for statement in others]
    if not all(stores):
        return True
    constructor.patches.extend(view.delete(store, "it was kept for FSDP1's state") for found in stores for store in found)
    return False


def _parts(text: Code, indent: str) -> list[Part]:
    parts = [part for part in text if not isinstance(part, Name)]
    return [part.replace("\n", "\n" + indent) if isinstance(part, str) else part for part in parts]
