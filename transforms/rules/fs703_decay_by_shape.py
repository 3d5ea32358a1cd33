"""Weight decay (or anything else) decided by a parameter's number of dimensions, behind FSDP1."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..training.local_reads import runs_on_shards, tensor_values
from ..training.shape_tests import shaped


def find(migration: Migration) -> Iterator[Site]:
    """Comparisons of ``p.dim()``, ``p.ndim`` or ``len(p.shape)`` on parameters of an FSDP1 model."""
    for view in migration.views():
        for node in view.nodes(ast.Compare):
            tensor = next((t for part in (node.left, *node.comparators) if (t := shaped(part)) is not None), None)
            if tensor is None:
                continue
            group, values = tensor_values(migration, view, tensor)
            if group is not None and "FSDP1" in group.kinds and runs_on_shards(migration, view, node, group):
                yield Site(view, node, "torch.Tensor.shape_test", "hazard", group, values)


def check(site: Site, migration: Migration) -> Outcome:
    return Outcome(
        Level.REVIEW,
        "parameters were one-dimensional behind FSDP1, so this test took the same side for all of them; with FSDP2 they "
        "have their own shapes and training follows them",
        "Usually that is what was meant all along. To train exactly as before, replace the test by what it gave.",
    )


_DECAY = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(build(), use_orig_params=True)
decay = [p for p in model.parameters() if p.dim() >= 2]
optimizer = torch.optim.AdamW(decay)
"""
_DECAY_AFTER = """\
import torch
from torch.distributed.fsdp import fully_shard

model = build()
fully_shard(model)
decay = [p for p in model.parameters() if p.dim() >= 2]
optimizer = torch.optim.AdamW(decay)
"""

RULE = Rule(
    id="FS703",
    title="Tests of a parameter's dimensions",
    why=(
        "FSDP1 shows parameters as one-dimensional pieces: of 41 parameters none had two dimensions, so groups built by "
        "p.dim() >= 2 never decayed anything. FSDP2 keeps shapes (15 of 41), so the same code decays 15 of them: better, "
        "and different training. The gradients of the first step are equal and the parameters after it are not."
    ),
    symbols=("torch.Tensor.shape_test",),
    roles=("hazard",),
    check=check,
    sources=("semantics measured on torch 2.13, use_orig_params=True and False",),
    examples=(Example(before=_DECAY, after=_DECAY_AFTER, level=Level.REVIEW),),
    find=find,
)
