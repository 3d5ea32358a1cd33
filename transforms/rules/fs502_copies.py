"""Copies of the model after it is sharded: ``deepcopy``, averaged models, pickles of whole models."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.objects import is_anything
from ..analysis.values import Value, Wrapped
from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state.reads import last_name
from ..training.in_scope import means_a_model
from ..training.passes import outside_name
from ..view import FileView

_COPY = "copy.deepcopy"
_AVERAGED = "torch.optim.swa_utils.AveragedModel"
_SAVE = "torch.save"
_COPIES = (_COPY, _AVERAGED, _SAVE)


def find(migration: Migration) -> Iterator[Site]:
    """Copies of a model of a group, as a whole."""
    for view in migration.views():
        for node in view.nodes(ast.Call):
            if not node.args:
                continue
            name = outside_name(view, node.func)
            if name is None or not (name in _COPIES or _is_average(name)):
                continue
            for copied in _copied(node.args[0]):
                if _is_state_dict(copied):
                    continue
                values = tuple(view.values(copied))
                models = [v for v in values if _is_model(migration, v)]
                group = migration.groups.of(models)
                if group is not None and (not all(map(is_anything, models)) or means_a_model(models, last_name(copied))):
                    yield Site(view, node, name, "hazard", group, values, node)
                    break


def _is_average(name: str) -> bool:
    return name.startswith("timm.") and "ModelEma" in name


def _copied(node: ast.expr) -> list[ast.expr]:
    """The thing itself, and the values of a dictionary display."""
    return [node, *(value for value in node.values)] if isinstance(node, ast.Dict) else [node]


def _is_state_dict(node: ast.expr) -> bool:
    """Whether an expression calls ``state_dict()``, whatever the receiver is: never a whole model."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "state_dict"


def _is_model(migration: Migration, value: Value) -> bool:
    return isinstance(value, Wrapped) or any(value in group.raw for group in migration.groups.all)


def check(site: Site, migration: Migration) -> Outcome:
    group, what = site.group, site.member
    assert group is not None
    order = _order(migration, site.view, site.node, group)
    if order == "before":
        return _whole_copy(site, migration)
    if site.symbol == _SAVE:
        message = "a whole model is pickled, and a sharded one cannot be"
        advice = "Save get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)) instead."
    else:
        message = f"{what} of a sharded model raises"
        advice = (
            "A copy that runs beside the model is made before fully_shard, and sharded in the same way "
            "(reshard_after_forward=True). For a file take get_model_state_dict with full_state_dict=True and "
            "cpu_offload=True on all ranks; where the file has to hold a model, rank 0 loads that into one that stays whole."
        )
    if order == "after":
        return Outcome(Level.MANUAL, message, advice)
    return Outcome(Level.REVIEW, f"{message}; whether this runs after the sharding is not seen", advice)


def _whole_copy(site: Site, migration: Migration) -> Outcome:
    """A copy from before the sharding stays whole, which matters to averages that are updated from the model."""
    if site.symbol == _SAVE:
        return Outcome(Level.OK, "saved before the model is sharded")
    advice = "Shard the copy in the same way as the model (with reshard_after_forward=True, as it only runs forward)."
    if site.symbol != _COPY:
        return Outcome(
            Level.MANUAL,
            f"{site.member} is made before the model is sharded: its update mixes whole and sharded tensors and raises",
            advice,
            holds=True,
        )
    statement = site.view.statement(site.node)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if _is_wrapped_itself(site.view, migration, [site.view.text(target) for target in targets]):
        return Outcome(Level.OK, "copied before the model is sharded, and sharded itself")
    names = " ".join(site.view.text(target).lower() for target in targets)
    if any(word in names for word in ("ema", "average", "avg", "teacher", "target", "momentum")):
        return Outcome(
            Level.REVIEW,
            "this copy stays whole: an update from parameters of the sharded model raises, one from its full state "
            "dict does not",
            advice,
        )
    return Outcome(Level.OK, "copied before the model is sharded")


def _is_wrapped_itself(view: FileView, migration: Migration, names: list[str]) -> bool:
    """Whether a wrap of the same file takes the copy by one of these names."""
    calls = [wrap.node for group in migration.groups.all for wrap in group.wraps if wrap.view is view]
    handed = [argument for call in calls for argument in (*call.args[:1], *(k.value for k in call.keywords if k.arg == "module"))]
    return any(view.text(argument) in names for argument in handed)


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
            _HEAD + "model = build()\nteacher = copy.deepcopy(model)\nmodel = FSDP(model)\nteacher = FSDP(teacher)\n",
            "import copy\n\nfrom torch.distributed.fsdp import fully_shard\n\n"
            "model = build()\nteacher = copy.deepcopy(model)\nfully_shard(model)\nfully_shard(teacher)\n",
            Level.OK,
            "a copy that is sharded itself",
        ),
        Example(
            _HEAD + "model = build()\nfrozen = copy.deepcopy(model)\nmodel = FSDP(model)\n",
            "import copy\n\nfrom torch.distributed.fsdp import fully_shard\n\n"
            "model = build()\nfrozen = copy.deepcopy(model)\nfully_shard(model)\n",
            Level.OK,
        ),
    ),
)
