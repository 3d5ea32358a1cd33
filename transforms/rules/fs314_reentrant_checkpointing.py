"""Activation checkpointing that enters autograd again, around units that run more than once before a backward."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.values import Instance
from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sharding.model_code import classes_of
from ..sites import Site
from ..training.passes import outside_name
from ..view import FileView

_CHECKPOINTS = frozenset({"torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential"})
_SYMBOL = "torch.utils.checkpoint.use_reentrant"
_WORDS = ("use_reentrant", "utils.checkpoint", "utils import checkpoint")
_REENTRANT = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.CheckpointImpl.REENTRANT"


def find(migration: Migration) -> Iterator[Site]:
    """Where re-entrant checkpointing is asked for, in a repository whose FSDP1 models have units inside."""
    groups = [group for group in migration.groups.all if "FSDP1" in group.kinds and _has_units(group)]
    if not groups:
        return
    views = {view.path: view for word in (*_WORDS, "REENTRANT") for view in migration.program.views_with(word)}
    for _, view in sorted(views.items()):
        for node in view.nodes(ast.Call, ast.Dict, ast.Attribute):
            asked = _asked(view, node)
            if asked is not None:
                yield Site(view, asked, _SYMBOL, "hazard", _group_of(migration, groups, view, node))


def _has_units(group: Group) -> bool:
    keywords = (keyword for wrap in group.wraps for keyword in wrap.node.keywords)
    return len(group.wraps) > 1 or any(_may_be_policy(keyword) for keyword in keywords)


def _may_be_policy(keyword: ast.keyword) -> bool:
    is_none = isinstance(keyword.value, ast.Constant) and keyword.value.value is None
    return keyword.arg is None or (keyword.arg == "auto_wrap_policy" and not is_none)


def _group_of(migration: Migration, groups: list[Group], view: FileView, node: ast.AST) -> Group:
    """The group whose models' code a place is in; the first, if that is not seen."""
    owner = view.enclosing_class(node)
    for group in groups if owner is not None else []:
        for model in (value for value in group.raw if isinstance(value, Instance)):
            if any(cls is owner for _, cls in classes_of(migration, model.cls)):
                return group
    return groups[0]


def _asked(view: FileView, node: ast.Call | ast.Dict | ast.Attribute) -> ast.expr | None:
    """What says that checkpointing is re-entrant: a value that is not False, or a call that leaves it open."""
    if isinstance(node, ast.Attribute):
        return node if node.attr == "REENTRANT" and outside_name(view, node) == _REENTRANT else None
    if isinstance(node, ast.Dict):
        keys = [(key.value, value) for key, value in zip(node.keys, node.values, strict=True) if isinstance(key, ast.Constant)]
        return next((v for key, v in keys if key == "use_reentrant" and not _is_false(v)), None)
    given = next((k.value for k in node.keywords if k.arg == "use_reentrant"), None)
    if given is not None:
        return None if _is_false(given) else given
    is_open = outside_name(view, node.func) in _CHECKPOINTS and all(k.arg is not None for k in node.keywords)
    return node if is_open and bool(node.args) else None


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def check(site: Site, migration: Migration) -> Outcome:
    view, node = site.view, site.node
    assert isinstance(node, ast.expr)
    outcome = Outcome(
        Level.REVIEW,
        "re-entrant checkpointing runs a unit's forward again inside the backward: where a unit runs more than once before "
        "it (shared layers, pairs of batches), FSDP2 loses gradients or leaves units gathered",
        "With use_reentrant=False parameters inside train even if no input of theirs requires a gradient.",
    )
    if isinstance(node, ast.Constant) and node.value is True:
        outcome.patches.append(view.replace(node, "False", "units may run more than once"))
    elif isinstance(node, ast.Attribute) and node.attr == "REENTRANT":
        outcome.patches.append(view.replace(node, (view.keep(node.value), ".NO_REENTRANT"), "units may run more than once"))
    elif isinstance(node, ast.Call):
        last = node.keywords[-1] if node.keywords else node.args[-1]
        outcome.patches.append(view.replace(last, (view.keep(last), ", use_reentrant=False"), "units may run more than once"))
    else:
        outcome.message += f"; {view.text(node)} should be False"
        return outcome
    outcome.message += "; use_reentrant=False gives the numbers that FSDP1 gave"
    return outcome


_BEFORE = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.checkpoint import checkpoint


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return x


model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Block}))
"""
_AFTER = """\
import torch
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


model = Net()
for module in reversed(list(model.modules())):
    if isinstance(module, Block):
        fully_shard(module)
fully_shard(model)
"""

RULE = Rule(
    id="FS314",
    title="Re-entrant activation checkpointing of units",
    why=(
        "A unit that runs twice before a backward and is checkpointed by re-entry is gathered, reduced and resharded in an "
        "order that FSDP2 does not expect. Measured with one block run three times, the second loss was 7.82 instead of 7.56; "
        "with pairs of batches clipping raised, as some gradients were no DTensors. FSDP1 took both."
    ),
    symbols=(_SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=(
        "torch/distributed/fsdp/_fully_shard/_fsdp_state.py: _pre_forward while a backward runs",
        "shared and paired blocks under FSDP1 and FSDP2 with both kinds of checkpointing, run on torch 2.13",
    ),
    examples=(Example(_BEFORE, _AFTER, Level.REVIEW),),
)
