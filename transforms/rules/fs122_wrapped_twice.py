"""Parameters that come under two wraps, one after the other: DDP takes them again, fully_shard does not."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.values import Instance, Opaque, Value
from ..findings import Level
from ..groups import Wrap
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..training.conditions import conditions_of
from ..view import FileView

SYMBOL = "torch.nn.Module.wrapped_again"


def find(migration: Migration) -> Iterator[Site]:
    """Wraps of what is wrapped already when they run, and those that came before them."""
    wraps = [wrap for group in migration.groups.all for wrap in group.wraps]
    found: dict[Wrap, None] = {}
    for wrap in wraps:
        earlier = [other for other in wraps if other is not wrap and _comes_again(migration, other, wrap)]
        if earlier or _repeats(migration, wrap):
            found.update(dict.fromkeys((*earlier, wrap)))
    for wrap in found:
        yield Site(wrap.view, wrap.node, SYMBOL, "hazard", migration.groups.of([wrap.value]), (wrap.value,), wrap.node)


def _repeats(migration: Migration, wrap: Wrap) -> bool:
    """Whether a loop wraps what was made outside of it, and what it does not bind anew."""
    view, model = wrap.view, _model(wrap)
    if not isinstance(model, (ast.Name, ast.Attribute)):
        return False
    written = view.text(model)
    for loop in view.ancestors(wrap.node):
        if isinstance(loop, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return False
        if isinstance(loop, (ast.For, ast.AsyncFor, ast.While)):
            stores = [n for n in ast.walk(loop) if isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Store)]
            made = _made_in_scope(migration, wrap)
            places = [migration.program.call_node(value.site)[1] for value in made]
            if made and not any(view.text(n) == written for n in stores):
                return all(loop not in view.ancestors(place) for place in places)
    return False


def _comes_again(migration: Migration, first: Wrap, second: Wrap) -> bool:
    """Whether a wrap takes, behind another one of the same function, its model or a part of it."""
    view = second.view
    scope = view.function(second.node)
    if first.view is not view or view.function(first.node) is not scope:
        return False
    if migration.order.relation((view, first.node), (view, second.node)) != "before":
        return False
    if not conditions_of(view, first.node) <= conditions_of(view, second.node) or _leaves_behind(view, first.node):
        return False
    model = _model(second)
    if isinstance(model, ast.Attribute) and model.attr == "module" and first.value in view.values(model.value):
        return True
    one, other = set(_made_in_scope(migration, first)), set(_made_in_scope(migration, second))
    if one & other:
        return True
    inner, outer = migration.groups.parts_of(one), migration.groups.parts_of(other)
    if first.value in outer or one & outer:
        return False  # a unit inside of a larger one
    return any(_is_made_in(migration, value, view, scope) for value in inner & outer)


def _model(wrap: Wrap) -> ast.expr | None:
    keywords = {keyword.arg: keyword.value for keyword in wrap.node.keywords}
    return wrap.node.args[0] if wrap.node.args else keywords.get("module")


def _made_in_scope(migration: Migration, wrap: Wrap) -> list[Instance | Opaque]:
    """The models of a wrap that the function around it makes itself: a call of it makes them once."""
    model = _model(wrap)
    values = wrap.view.values(model) if model is not None else []
    scope = wrap.view.function(wrap.node)
    return [
        value
        for value in values
        if isinstance(value, (Instance, Opaque)) and _is_made_in(migration, value, wrap.view, scope)
    ]


def _is_made_in(migration: Migration, value: Value, view: FileView, scope: ast.AST | None) -> bool:
    if not isinstance(value, (Instance, Opaque)) or value.site < 0:
        return False
    maker, call = migration.program.call_node(value.site)
    return maker is view and view.function(call) is scope


def _leaves_behind(view: FileView, node: ast.AST) -> bool:
    """Whether the block of a wrap ends by leaving the function, so that what follows is another way."""
    block, _ = view.block_of(view.statement(node))
    return isinstance(block[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))


def check(site: Site, migration: Migration) -> Outcome:
    return Outcome(
        Level.MANUAL,
        "these parameters come under more than one wrap: fully_shard shards a parameter once, and a broadcast of what is "
        "sharded raises",
        "Shard once: parts that come later get a fully_shard of their own (the root's last), a model that changes its "
        "shape is built anew and given its weights with set_model_state_dict, and two models with a part in common "
        "become attributes of one module that is sharded.",
        holds=True,
    )


_SHARED = """\
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

encoder = nn.Linear(8, 8)
first = DDP(nn.Sequential(encoder, nn.Linear(8, 2)))
second = DDP(nn.Sequential(encoder, nn.Linear(8, 4)))
"""

RULE = Rule(
    id="FS122",
    title="The same parameters under two wraps",
    why=(
        "DDP may be put around a model again (after layers were frozen or added), and two DDP models may share a part. "
        "fully_shard changes the parameters themselves, and does so once: the second call, or the broadcast before it, "
        "raises on DTensors."
    ),
    symbols=(SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("two wraps of one model and of a shared encoder, run on torch 2.13, two ranks",),
    examples=(Example(_SHARED, _SHARED, Level.MANUAL),),
)
