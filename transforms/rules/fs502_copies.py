"""Copies of the model after it is sharded: ``deepcopy``, averaged models, pickles of whole models."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..passes import outside_name
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..values import Value, Wrapped
from ..view import FileView

_COPY = "copy.deepcopy"
_AVERAGED = "torch.optim.swa_utils.AveragedModel"
_SAVE = "torch.save"
_COPIES = (_COPY, _AVERAGED, _SAVE)


def find(migration: Migration) -> Iterator[Site]:
    """Copies of a model of a group, as a whole."""
    for view in migration.views():
        for node in ast.walk(view.tree):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = outside_name(view, node.func)
            if name is None or not (name in _COPIES or _is_average(name)):
                continue
            for copied in _copied(node.args[0]):
                values = tuple(view.values(copied))
                group = migration.groups.of([v for v in values if _is_model(migration, v)])
                if group is not None:
                    yield Site(view, node, name, "hazard", group, values, node)
                    break


def _is_average(name: str) -> bool:
    return name.startswith("timm.") and "ModelEma" in name


def _copied(node: ast.expr) -> list[ast.expr]:
    """The thing itself, and the values of a dictionary display."""
    return [node, *(value for value in node.values)] if isinstance(node, ast.Dict) else [node]


def _is_model(migration: Migration, value: Value) -> bool:
    return isinstance(value, Wrapped) or any(value in group.raw for group in migration.groups.all)


def check(site: Site, migration: Migration) -> Outcome:
    group, what = site.group, site.member
    assert group is not None
    order = _order(migration, site.view, site.node, group)
    if order == "before":
        return Outcome(Level.OK, "copied before the model is sharded")
    if site.symbol == _SAVE:
        message = "a whole model is pickled, and a sharded one cannot be"
        advice = "Save get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)) instead."
    else:
        message = f"{what} of a sharded model raises"
        advice = "Make the copy before fully_shard, and shard it in the same way (reshard_after_forward=True)."
    if order == "after":
        return Outcome(Level.MANUAL, message, advice)
    return Outcome(Level.REVIEW, f"{message}; whether this runs after the sharding is not seen", advice)


def _order(migration: Migration, view: FileView, node: ast.AST, group: Group) -> str:
    """Where a place stands towards all wraps of a group."""
    answers = {migration.order.relation((view, node), (wrap.view, wrap.node)) for wrap in group.wraps}
    if answers == {"before"}:
        return "before"
    return "after" if answers & {"after", "both"} else "unknown"


_HEAD = "import copy\n\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
_AFTER_WRAP = _HEAD + "model = FSDP(build())\nema = copy.deepcopy(model)\n"

RULE = Rule(
    id="FS502",
    title="Copies of a sharded model",
    why=(
        "An FSDPModule can be neither deep-copied nor pickled. DDP allowed both, so averages of weights and saved "
        "models are often made from the wrapped model."
    ),
    symbols=_COPIES,
    roles=("hazard",),
    check=check,
    find=find,
    sources=("https://github.com/pytorch/pytorch/issues/149138",),
    examples=(
        Example(
            _AFTER_WRAP,
            "import copy\n\nfrom torch.distributed.fsdp import fully_shard\n\n"
            "model = build()\nfully_shard(model)\nema = copy.deepcopy(model)\n",
            Level.MANUAL,
            "the copy raises when it is reached, as it did with FSDP1",
        ),
        Example(
            _HEAD + "model = build()\nema = copy.deepcopy(model)\nmodel = FSDP(model)\n",
            "import copy\n\nfrom torch.distributed.fsdp import fully_shard\n\n"
            "model = build()\nema = copy.deepcopy(model)\nfully_shard(model)\n",
            Level.OK,
        ),
    ),
)
