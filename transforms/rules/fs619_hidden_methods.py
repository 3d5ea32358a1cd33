"""Methods of ``nn.Module`` that a model overrides, and that its wrapper went around."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.values import ClassValue, Instance, Wrapped
from ..findings import Level
from ..groups import Group, Wrap
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site

_SYMBOL = "torch.nn.Module.overridden"
_OF_PARAMETERS = frozenset({"parameters", "zero_grad", "requires_grad_", "clip_grad_norm_"})
_ASKED_BY = {
    "parameters": _OF_PARAMETERS,
    "named_parameters": _OF_PARAMETERS | {"named_parameters"},
    "buffers": frozenset({"buffers"}),
    "named_buffers": frozenset({"buffers", "named_buffers"}),
    "children": frozenset({"children"}),
    "named_children": frozenset({"children", "named_children"}),
    "state_dict": frozenset({"state_dict"}),
    "load_state_dict": frozenset({"load_state_dict"}),
    "eval": frozenset({"eval"}),
    "zero_grad": frozenset({"zero_grad"}),
    "requires_grad_": frozenset({"requires_grad_"}),
    "to": frozenset({"to"}),
    "half": frozenset({"half"}),
    "float": frozenset({"float"}),
}
"""What a wrapper does itself without asking the model, and which of its methods come to it: those that ask it now.

``train``, ``apply`` and ``named_modules`` are not among them: the wrapper calls them on the model, as on any child.
"""


def find(migration: Migration) -> Iterator[Site]:
    """Calls on a wrapped model that came to the wrapper's own method, and come to the model's once it is sharded."""
    for group in migration.groups.all:
        overridden = {} if group.stays_ddp else _overridden_in(migration, group)
        if not overridden:
            continue
        for wrap in group.wraps:
            if overridden.get(wrap.value, set()) & _BROADCAST and _is_broadcast(wrap):
                yield Site(wrap.view, wrap.node, f"{_SYMBOL}.broadcast", "hazard", group)
        for view in migration.views():
            for node in view.nodes(ast.Attribute):
                values = view.values(node.value) if node.attr in _ALL and isinstance(node.ctx, ast.Load) else []
                for method in sorted({m for v in values if isinstance(v, Wrapped) for m in overridden.get(v, ())}):
                    if node.attr in _ASKED_BY[method]:
                        yield Site(view, node, f"{_SYMBOL}.{method}", "hazard", group, tuple(values))
                        break


_ALL = frozenset().union(*_ASKED_BY.values())
_BROADCAST = frozenset({"parameters", "named_parameters", "buffers", "named_buffers"})


def _is_broadcast(wrap: Wrap) -> bool:
    """Whether the wrapper gave all ranks the weights of the first: the rewrite asks the model for what to send."""
    return wrap.value.kind == "DDP" or any(keyword.arg == "sync_module_states" for keyword in wrap.node.keywords)


def _overridden_in(migration: Migration, group: Group) -> dict[Wrapped, set[str]]:
    """For each wrap of a group the methods that the class of its model defines in place of ``nn.Module``'s."""
    found: dict[Wrapped, set[str]] = {}
    for wrap in group.wraps:
        for model in migration.groups.models(migration.program.attribute(wrap.value, "module")):
            methods = _members(migration, model.cls) & _ASKED_BY.keys() if isinstance(model, Instance) else set[str]()
            if methods:
                found.setdefault(wrap.value, set()).update(methods)
    return found


def _members(migration: Migration, cls: ClassValue) -> set[str]:
    flow = migration.program.flow
    return {name for c in flow.ancestors(cls) for name in migration.program.files[c.file].classes[c.index].members}


def check(site: Site, migration: Migration) -> Outcome:
    view, node, group = site.view, site.node, site.group
    if site.member == "broadcast":
        return Outcome(
            Level.MANUAL,
            "the model says itself which parameters or buffers it has, and these alone would be broadcast before sharding: "
            "the wrapper sent all of them",
            "Give the model's method another name, or broadcast what is in torch.nn.Module.state_dict(model) by hand.",
            holds=True,
        )
    assert isinstance(node, ast.Attribute) and group is not None
    wrapper = " and ".join(sorted(group.kinds))
    return Outcome(
        Level.REVIEW,
        f"the model defines {site.member}() itself, and {view.text(node)}() never came to it: {wrapper} answered as any "
        "module does; a sharded model is the model, and its own method is what runs now",
        f"If that is not meant, call the general one: torch.nn.Module.{site.member}(model), or rename the model's method.",
    )


_BEFORE = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Probe(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 2)

    def parameters(self, recurse=True):
        return self.head.parameters(recurse)

    def forward(self, x):
        return self.head(self.body(x))


model = FSDP(Probe())
optimizer = torch.optim.AdamW(model.parameters())
"""
_AFTER = _BEFORE.replace("FullyShardedDataParallel as FSDP", "fully_shard").replace(
    "model = FSDP(Probe())", "model = Probe()\nfully_shard(model)"
)

RULE = Rule(
    id="FS619",
    title="Methods of a model that its wrapper went around",
    why=(
        "parameters(), state_dict(), load_state_dict(), eval() and the like of a wrapper are those of torch.nn.Module: they "
        "go over the modules inside and ask no model for its own. fully_shard makes no wrapper, so a model that defines "
        "such a method answers itself: an optimizer gets other parameters, a checkpoint other keys, and nothing raises."
    ),
    symbols=(f"{_SYMBOL}.*",),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("parameters(), state_dict() and eval() of a model overridden under FSDP1 and FSDP2, run on torch 2.13",),
    examples=(Example(_BEFORE, _AFTER, Level.REVIEW),),
)
