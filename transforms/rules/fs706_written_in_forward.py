"""Parameters that the model itself writes while it runs forward: ``self.temperature.clamp_(…)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.facts import FileFacts
from ..analysis.values import Instance
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sharding.model_code import class_node, classes_of
from ..sharding.parameter_writes import parameter_writes
from ..sharding.unseen_models import groups_with_unseen_models
from ..sites import Site
from ..view import FileView

_SYMBOL = "torch.Tensor.written_in_forward"
_MAYBE = "torch.Tensor.written_in_forward_of_unseen"
_ADVICE = (
    "Write into the parameter between the steps, where it is a DTensor (with torch.no_grad(): model.temperature.clamp_(…) "
    "behind optimizer.step()), or before the model is sharded, and let forward only read it."
)


def find(migration: Migration) -> Iterator[Site]:
    """Writes into parameters in forward, or in what it calls, of models that DDP wraps or may wrap."""
    known: set[ast.AST] = set()
    for group in migration.groups.all:
        if group.stays_ddp or "DDP" not in group.kinds:
            continue
        models = [value for value in group.raw if isinstance(value, Instance)]
        for value in sorted(models, key=lambda v: (v.cls.file, v.cls.index, v.site)):
            for view, owner in classes_of(migration, value.cls):
                for at, node in parameter_writes(migration, view, owner, "forward"):
                    if node not in known:
                        known.add(node)
                        yield Site(at, node, _SYMBOL, "hazard", group)
    unseen = groups_with_unseen_models(migration)
    if unseen:
        for at, node in _written_by_unseen(migration):
            if node not in known:
                known.add(node)
                yield Site(at, node, _MAYBE, "hazard", unseen[0])


def _written_by_unseen(migration: Migration) -> Iterator[tuple[FileView, ast.expr]]:
    """Such writes in models that nothing is seen to build: a registry may, for a wrap that takes what it is given."""
    flow = migration.program.flow
    for cls, built in flow.instances.items():
        if not _writes_in_place(flow.files[cls.file]) or any(value.site >= 0 for value in built):
            continue
        if any(name.startswith("torch.nn.") for name in flow.external_bases(cls)):
            owner = class_node(migration, cls)
            if owner is not None:
                yield from parameter_writes(migration, *owner, "forward")


def _writes_in_place(file: FileFacts) -> bool:
    """Whether a file holds anything that may write into a parameter: looking into it takes its whole tree."""
    methods = (call.method or "" for call in file.calls)
    return any(attribute == "data" for _, attribute, _ in file.stores) or any(
        name.endswith("_") and not name.startswith("_") and name != "requires_grad_" for name in methods
    )


def check(site: Site, migration: Migration) -> Outcome:
    assert isinstance(site.node, ast.expr)
    if site.symbol == _MAYBE:
        return Outcome(
            Level.REVIEW,
            f"{site.view.text(site.node)} is written while forward runs; where DDP wrapped a model of this class, and now "
            "fully_shard takes it, what is written goes into a gathered copy and is lost, and nothing raises",
            _ADVICE,
        )
    return Outcome(
        Level.MANUAL,
        f"{site.view.text(site.node)} is written while forward runs, where FSDP2 shows the model a gathered copy: what is "
        "written is lost when the copy goes, and nothing raises",
        _ADVICE,
        holds=True,
    )


_BEFORE = """\
import torch
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.temperature = nn.Parameter(torch.full((1,), 0.07))

    def forward(self, x):
        with torch.no_grad():
            self.temperature.clamp_(0.001, 0.5)
        return self.layer(x) / self.temperature


torch.cuda.set_device(local_rank)
model = DDP(Net().to(device), device_ids=[local_rank])
"""

RULE = Rule(
    id="FS706",
    title="Parameters written in forward",
    why=(
        "Under DDP forward sees the parameter itself. Under FSDP2 it sees the gathered tensor, and the optimizer goes on "
        "from the shards: a temperature that forward clamps drifts past its bound. Measured with a clamp in forward, "
        "losses of the fourth step were 6338.4 and 6302.6, without an error."
    ),
    symbols=(_SYMBOL, _MAYBE),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("measured on torch 2.13, two ranks",),
    examples=(Example(_BEFORE, _BEFORE, Level.MANUAL),),
)
