"""``if not distributed and key.startswith("module.")``: the prefix of DDP's files, cut off where the model had no wrapper."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.scopes import dotted_path
from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..training.conditions import conditions_of
from ..view import FileView

_SYMBOL = "module.prefix_test"
_PREFIXES = ("module", "module.")


def find(migration: Migration) -> Iterator[Site]:
    """Tests that ask for the prefix only where no model is wrapped, and whose branch cuts it off."""
    for view in migration.views():
        for node in view.nodes(ast.If, ast.IfExp):
            test = node.test
            if not isinstance(test, ast.BoolOp) or not isinstance(test.op, ast.And):
                continue
            body = node.body if isinstance(node.body, list) else [node.body]
            if not any(map(_asks_for_prefix, test.values)) or not any(map(_cuts, body)):
                continue
            group = next((group for group in migration.groups.all if _plain(view, test, group)), None)
            if group is not None:
                yield Site(view, test, _SYMBOL, "hazard", group)


def _asks_for_prefix(node: ast.expr) -> bool:
    return any(
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "startswith"
        and any(isinstance(argument, ast.Constant) and argument.value in _PREFIXES for argument in call.args)
        for call in ast.walk(node)
    ) and not isinstance(node, ast.UnaryOp)


def _cuts(statement: ast.AST) -> bool:
    """Whether a branch takes something as long as the prefix off names, rather than putting it before them."""
    nodes = list(ast.walk(statement))
    is_put = any(isinstance(node, (ast.BinOp, ast.JoinedStr)) for node in nodes)
    named = any(isinstance(node, ast.Constant) and node.value in ("module.", len("module.")) for node in nodes)
    return named and not is_put


def _plain(view: FileView, test: ast.BoolOp, group: Group) -> list[ast.expr]:
    """The operands that are false wherever a model of the group is wrapped."""
    if "DDP" not in group.kinds or group.stays_ddp or not group.wraps:
        return []
    wrapped = [conditions_of(wrap.view, wrap.node) for wrap in group.wraps]
    return [operand for operand in test.values if all(_opposite(operand) in conditions for conditions in wrapped)]


def _opposite(operand: ast.expr) -> str:
    negative = isinstance(operand, ast.UnaryOp) and isinstance(operand.op, ast.Not)
    inner = operand.operand if isinstance(operand, ast.UnaryOp) and negative else operand
    path = dotted_path(inner)
    name = path.rpartition(".")[2] if path is not None else ast.unparse(inner)
    return name if negative else f"not {name}"


def check(site: Site, migration: Migration) -> Outcome:
    view, test, group = site.view, site.node, site.group
    assert isinstance(test, ast.BoolOp) and group is not None
    plain = _plain(view, test, group)
    kept = [operand for operand in test.values if operand not in plain]
    parts = [part for operand in kept for part in (" and ", view.keep(operand))][1:]
    outcome = Outcome(
        Level.REVIEW,
        "names of a sharded model have no module. before them, so the prefix of files that DDP wrote is cut off for it as well",
    )
    outcome.patches.append(view.replace(test, parts, "a sharded model is loaded like a plain one"))
    return outcome


_BEFORE = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.cuda.set_device(local_rank)
model = build()
if args.distributed:
    model = DDP(model, broadcast_buffers=False)
state = torch.load("model.pt")
if not args.distributed and next(iter(state)).startswith("module."):
    state = {key[len("module."):]: value for key, value in state.items()}
model.load_state_dict(state)
"""
_AFTER = """\
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard

torch.cuda.set_device(local_rank)
model = build()
if args.distributed:
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    fully_shard(model)
state = torch.load("model.pt")
if next(iter(state)).startswith("module."):
    state = {key[len("module."):]: value for key, value in state.items()}
set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True))
"""

RULE = Rule(
    id="FS419",
    title="The prefix of DDP's files is cut off for sharded models",
    why=(
        "Programs that run with and without DDP cut module. off the keys of a file only where they run without: under DDP "
        "the names of the model have it as well. fully_shard changes no names, so a file from before is refused for "
        "unexpected keys (measured on torch 2.13) unless the prefix goes for the sharded model, too. Files of the new "
        "program have none, and the test lets them pass."
    ),
    symbols=(_SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("torch/distributed/checkpoint/state_dict.py: set_model_state_dict",),
    examples=(Example(_BEFORE, _AFTER, Level.REVIEW),),
)
