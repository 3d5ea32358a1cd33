"""``torch.nn.utils.clip_grad_norm_`` on a model that becomes sharded: what happens to the norm it returns."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.symbols import FSDP1
from ..analysis.values import Derived, Optimizer, Value, Wrapped
from ..findings import Level
from ..migration import Migration
from ..program import owner_of
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..training.clipping import CLIP, gather_norm, is_used
from ..training.passes import outside_name
from ..view import FileView

_NAMES = frozenset({CLIP, "torch.nn.utils.clip_grad.clip_grad_norm_", "torch.nn.utils.clip_grad_norm"})


def find(migration: Migration) -> Iterator[Site]:
    """Calls over the parameters of a model that is wrapped somewhere."""
    for view in migration.views():
        for node in view.nodes(ast.Call):
            if not node.args or outside_name(view, node.func) not in _NAMES:
                continue
            values = migration.program.elements(view.values(node.args[0]))
            values.extend(_of_optimizers(migration, view, node.args[0]))
            owners = tuple(dict.fromkeys(owner_of(v) for v in values if isinstance(v, Derived)))
            group = migration.groups.of(owners)
            if group is not None:
                yield Site(view, node, CLIP, "hazard", group, owners, node)


def _of_optimizers(migration: Migration, view: FileView, node: ast.expr) -> list[Value]:
    """What the optimizers hold that an expression goes through (``optimizer.param_groups[0]["params"]``)."""
    found: list[Value] = []
    for inner in ast.walk(node):
        for value in view.values(inner):
            if isinstance(value, Optimizer):
                found.extend(migration.program.elements(migration.program.attribute(value, "params")))
    return found


def check(site: Site, migration: Migration) -> Outcome:
    view, call = site.view, site.call
    assert call is not None
    only_fsdp1 = all(isinstance(v, Wrapped) and v.kind == "FSDP1" for v in site.values)
    if not is_used(view, call):
        if only_fsdp1 and not _beside_own_clipping(view, call):
            return Outcome(
                Level.REVIEW,
                "this clipped every rank's shards of an FSDP1 model by a norm of their own; with FSDP2 the norm is "
                "that of the whole model",
                "Nothing to write; training is clipped as it was meant to be, and so differs.",
            )
        return Outcome(Level.OK, "clips by the norm over all shards; the norm itself is not used")
    outcome = Outcome(Level.SAFE, "the norm is a DTensor where the model is sharded, and gathered before it is used")
    if only_fsdp1:
        outcome.level = Level.REVIEW
        outcome.message += "; it was the norm of one rank's shards under FSDP1 and is that of the whole model now"
    if not gather_norm(site, migration, outcome, call):
        return Outcome(
            Level.MANUAL,
            "the norm is used inside an expression that leaves no place for gathering it",
            "Assign the result first; where the model is sharded it is a DTensor: take norm.full_tensor().",
            holds=True,
        )
    return outcome


def _beside_own_clipping(view: FileView, call: ast.Call) -> bool:
    """Whether this is the branch for models without FSDP: the other one calls ``model.clip_grad_norm_``."""
    child: ast.AST = call
    for ancestor in view.ancestors(call):
        if isinstance(ancestor, ast.If):
            other = ancestor.body if child in ancestor.orelse else ancestor.orelse
            if any(
                isinstance(n, ast.Attribute) and n.attr == "clip_grad_norm_" and outside_name(view, n) is None
                for statement in other
                for n in ast.walk(statement)
            ):
                return True
        child = ancestor
    return False


_WRAP = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(build())\n"
_SHARD = "import torch\nfrom torch.distributed.fsdp import fully_shard\n\nmodel = build()\nfully_shard(model)\n"
_OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"

RULE = Rule(
    id="FS304",
    title="The norm that torch.nn.utils.clip_grad_norm_ returns is a DTensor",
    why=(
        "Clipping itself needs no change. The returned norm does: formatting a DTensor raises, .cpu() leaves it one, "
        "and for norm_type=inf .item() gave 21.21 on one rank and 17.88 on the other."
    ),
    symbols=(CLIP,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=(f"torch/nn/utils/clip_grad.py; {FSDP1.rpartition('.')[2]}.clip_grad_norm_",),
    proof=("nanogpt_ddp",),
    examples=(
        Example(
            _WRAP + "norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\nprint(norm.item())\n",
            _SHARD + "norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()\n"
            "print(norm.item())\n",
            Level.REVIEW,
        ),
        Example(
            _WRAP + _OPTIMIZER + 'norm = torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)\n',
            _SHARD + _OPTIMIZER
            + 'norm = torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0).full_tensor()\n',
            Level.REVIEW,
        ),
    ),
)
