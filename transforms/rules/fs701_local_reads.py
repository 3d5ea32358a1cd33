"""Numbers read off parameters and gradients: norms by hand, statistics, NaN guards."""

from __future__ import annotations

import ast

from ..analysis import library
from ..analysis.values import Derived
from ..findings import Level
from ..migration import Migration
from ..ranks.guards import GuardFinder
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..training.certainty import always_sharded
from ..training.local_reads import COMPARED, local_reads
from ..view import FileView

_DTENSOR = "torch.distributed.tensor.DTensor"
_ADVICE = (
    "Compute it from .full_tensor() on every rank, or read the DTensor's value with .full_tensor().item(); for the norm "
    "of all gradients take torch.nn.utils.get_total_norm or what clip_grad_norm_ returns."
)


def check(site: Site, migration: Migration) -> Outcome:
    group = site.group
    assert group is not None
    view, node = site.view, site.node
    assert isinstance(node, ast.expr)
    what = site.member.strip("_")
    compared = site.symbol == COMPARED
    if "FSDP1" in group.kinds and not compared:
        return Outcome(
            Level.MANUAL,
            f"{what} reads a number off a parameter or gradient: FSDP1 gave this rank's flat shard here, FSDP2 gives this "
            "rank's rows, so the number changes and nothing raises",
            _ADVICE,
            holds=True,
        )
    plain = view.text(node)
    finder = migration.once("guards", None, lambda: GuardFinder(migration.program))
    if finder.around(view, node) or finder.callers_guarded(view, node) is not None:
        return Outcome(
            Level.MANUAL,
            f"{plain} is read on some ranks only: a DTensor has to be gathered by all of them, and gathering it here hangs",
            "Compute it on every rank, from .full_tensor(), and keep behind the rank guard what prints or writes it.",
            holds=True,
        )
    if compared:
        answer = f"the comparison with {plain} gathers what it compares: every rank gets the same answer"
        if "FSDP1" in group.kinds:
            return Outcome(Level.REVIEW, f"{answer}, where FSDP1 compared this rank's flat shard")
        return Outcome(Level.OK, answer)
    if site.symbol == "torch.Tensor.__bool__":
        return Outcome(
            Level.MANUAL,
            f"{plain} decides on a parameter or gradient: with shards each rank would see its own part and may take "
            "another way than the rest, which hangs",
            _ADVICE,
            holds=True,
        )
    outcome = Outcome(
        Level.REVIEW,
        f"{plain} is a DTensor once the model is sharded, and {what} would read this rank's part of it",
        "All ranks have to come here: .full_tensor() is a collective.",
    )
    if always_sharded(migration, site, node):
        simple = isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
        written = [view.keep(node), ".full_tensor()"] if simple else ["(", view.keep(node), ").full_tensor()"]
        outcome.patches.append(view.replace(node, written, "a DTensor is read as a whole"))
        return outcome
    asked = _what_to_ask(view, node)
    if asked is None:
        return Outcome(
            Level.MANUAL,
            f"{plain} may be a DTensor once the model is sharded, or a plain number: {what} would read this rank's part of it",
            _ADVICE,
            holds=True,
        )
    dtensor, kept = migration.use(outcome, view, _DTENSOR, node), view.keep(asked)
    written = ["(", kept, ".full_tensor() if isinstance(", kept, f", {dtensor}) else ", kept, ")"]
    outcome.message += "; it may be a plain number as well, so its type is looked at"
    outcome.patches.append(view.replace(asked, written, "a DTensor is read as a whole"))
    return outcome


def _what_to_ask(view: FileView, node: ast.expr) -> ast.expr | None:
    """The innermost tensor that an expression starts from, if it may be written three times over."""
    found: ast.expr | None = None
    current = node
    while True:
        is_tensor = any(isinstance(v, Derived) and v.kind in library.TENSORS for v in view.values(current))
        if is_tensor and not any(isinstance(inner, (ast.Call, ast.NamedExpr, ast.Await)) for inner in ast.walk(current)):
            found = current
        if isinstance(current, ast.Call):
            current = current.func
        elif isinstance(current, (ast.Attribute, ast.Subscript, ast.Starred)):
            current = current.value
        else:
            return found


_HEAD = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

"""
_DDP = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(build())
for step in range(3):
    model(batch(step)).sum().backward()
    total = 0.0
    for p in model.parameters():
        total += p.grad.norm().item() ** 2
    print(total)
"""
_FSDP = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(build())
model(batch()).sum().backward()
if any(p.grad.isnan().any() for p in model.parameters()):
    raise SystemExit("diverged")
print(next(model.parameters()).abs().max().item())
"""

RULE = Rule(
    id="FS701",
    title="Numbers read off sharded parameters",
    why=(
        "Arithmetic on DTensors is right, but .item(), float(), formatting or an if take this rank's part of the result. "
        "Measured: a gradient norm summed up by hand came out as 0.505 and 0.482 on two ranks instead of 0.699; a NaN in "
        "one shard is seen by one rank only, so that ranks part ways and hang. Nothing raises."
    ),
    symbols=("torch.Tensor.*",),
    roles=("hazard",),
    check=check,
    advice=_ADVICE,
    sources=("torch/distributed/tensor/_api.py: DTensor.full_tensor", "semantics measured on torch 2.13, two ranks"),
    examples=(
        Example(before=_FSDP, after=_FSDP, level=Level.MANUAL, note="what FSDP1 showed here was a flat shard as well"),
    ),
    find=local_reads,
)
