"""Tensors shaped like a parameter or gradient that are filled by index: masks for rows of an embedding, mostly.

``mask = torch.zeros_like(grad); mask[row] = 1`` writes into a copy where ``grad`` is a DTensor. Filled as a whole
tensor and then divided like the one that it is shaped after, the mask is on every rank what it was.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..analysis import library
from ..analysis.scopes import dotted_path
from ..analysis.values import Derived
from ..findings import Level
from ..migration import Migration
from ..rule import Outcome
from ..sites import Site
from ..view import FileView
from .certainty import always_sharded

_DTENSOR = "torch.distributed.tensor.DTensor"
_REPLICATE = "torch.distributed.tensor.Replicate"
_LIKE = {f"torch.{name}_like": name for name in ("zeros", "ones", "empty", "full")}
_WHY = "what is filled by index is a whole tensor until then"


@dataclass(frozen=True)
class Filled:
    """A tensor that is made in one statement and filled in those that follow it."""

    made: ast.Call
    like: ast.expr
    name: str
    stores: tuple[ast.Assign, ...]


def filled_at(view: FileView, store: ast.AST) -> Filled | None:
    """What a store by index goes on to fill, if that was made in front of it for this alone."""
    name = _stored(store)
    if name is None or not isinstance(store, ast.stmt):
        return None
    block, place = view.block_of(store)
    first = place
    while first > 0 and _stored(block[first - 1]) == name:
        first -= 1
    made = block[first - 1] if first else None
    last = place
    while last + 1 < len(block) and _stored(block[last + 1]) == name:
        last += 1
    stores = tuple(s for s in block[first : last + 1] if isinstance(s, ast.Assign))
    if not isinstance(made, ast.Assign) or not isinstance(made.value, ast.Call) or not made.value.args:
        return None
    call, like = made.value, made.value.args[0]
    targets = [target.id for target in made.targets if isinstance(target, ast.Name)]
    if targets != [name] or view.external(call.func) not in _LIKE or not isinstance(call.func, ast.Attribute):
        return None
    if dotted_path(like) is None or any(keyword.arg not in ("dtype", "device") for keyword in call.keywords):
        return None
    if not all(_takes_plain(view, s, name) and view.stands_alone(s) for s in stores):
        return None
    return Filled(call, like, name, stores)


def _stored(statement: ast.AST) -> str | None:
    """The name whose elements a statement assigns, and nothing else."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    return target.value.id if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) else None


def _takes_plain(view: FileView, store: ast.Assign, name: str) -> bool:
    """Whether the tensor itself is the only one of a sharded model that a store works with."""
    return not any(
        isinstance(value, Derived) and value.kind in library.TENSORS
        for node in ast.walk(store)
        if isinstance(node, (ast.Name, ast.Attribute)) and getattr(node, "id", "") != name
        for value in view.values(node)
    )


def fill_whole(migration: Migration, site: Site, filled: Filled) -> Outcome:
    """The tensor is made whole, and divided behind the last store."""
    view, call = site.view, filled.made
    like, last = view.text(filled.like), filled.stores[-1]
    outcome = Outcome(
        Level.REVIEW,
        f"{filled.name} is filled as a whole tensor and then divided like {like}",
        "All ranks have to fill it alike: each keeps its part of what it has filled itself."
        + (" FSDP1's flat shards took an index for another element than it named." if _is_fsdp1(site) else ""),
    )
    if site.node is not filled.stores[0]:
        return outcome
    assert isinstance(call.func, ast.Attribute)
    make = _LIKE[view.external(call.func) or ""]
    given = {keyword.arg: view.text(keyword.value) for keyword in call.keywords}
    values = "".join(f", {view.text(argument)}" for argument in call.args[1:])
    kinds = "".join(f", {name}={given.get(name, f'{like}.{name}')}" for name in ("dtype", "device"))
    whole = f"{view.text(call.func.value)}.{make}({like}.shape{values}{kinds})"
    outcome.patches.append(view.replace(call, whole, _WHY))
    replicate, dtensor = (migration.use(outcome, view, symbol, last) for symbol in (_REPLICATE, _DTENSOR))
    indent = view.indent(last)
    is_sharded = always_sharded(migration, site, filled.like)
    lines = "" if is_sharded else f"{indent}if isinstance({like}, {dtensor}):\n"
    inner = indent if is_sharded else f"{indent}    "
    mesh = view.free_name(last, "mesh")
    # every rank has it whole, so that nothing has to be sent
    whole_everywhere = f"{dtensor}.from_local({filled.name}, {mesh}, [{replicate}()] * {mesh}.ndim, run_check=False)"
    lines += f"{inner}{mesh} = {like}.device_mesh\n{inner}{filled.name} = {whole_everywhere}\n"
    lines += f"{inner}{filled.name} = {filled.name}.redistribute(placements={like}.placements)\n"
    outcome.patches.append(view.insert_after(last, lines, _WHY))
    return outcome


def _is_fsdp1(site: Site) -> bool:
    return site.group is not None and "FSDP1" in site.group.kinds
