"""``no_sync``: the nine ways in which it is written, all become FSDP2's switch on the model."""

from __future__ import annotations

from ..rule import Example, Rule
from ..training.no_sync import rewritten

_HEAD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(build(), use_orig_params=True)
"""
_HEAD_AFTER = """\
import torch
from torch.distributed.fsdp import fully_shard

model = build()
fully_shard(model)
"""

RULE = Rule(
    id="FS301",
    title="no_sync becomes set_requires_gradient_sync",
    why=(
        "FSDP2 modules have no no_sync. Their switch set_requires_gradient_sync is read in the backward (DDP reads its "
        "own in the forward) and keeps its setting. Left out, every micro-batch communicates; left off, ranks train "
        "on their own gradients."
    ),
    symbols=(
        "torch.distributed.fsdp.FullyShardedDataParallel.no_sync",
        "torch.nn.parallel.DistributedDataParallel.no_sync",
    ),
    roles=("use", "reference"),
    check=rewritten,
    sources=(
        "torch/distributed/fsdp/_fully_shard/_fully_shard.py: FSDPModule.set_requires_gradient_sync",
        "torch/nn/parallel/distributed.py: DistributedDataParallel.no_sync",
    ),
    proof=("trainer_class", "trainer_files", "grad_op_accumulation", "model_without_ddp", "no_sync_helper"),
    examples=(
        Example(
            _HEAD
            + "for micro_batch in batch[:-1]:\n    with model.no_sync():\n        model(micro_batch).backward()\n",
            _HEAD_AFTER + "for micro_batch in batch[:-1]:\n    model.set_requires_gradient_sync(False)\n"
            "    model(micro_batch).backward()\n    model.set_requires_gradient_sync(True)\n",
        ),
        Example(
            _HEAD.replace("import torch\n", "from contextlib import nullcontext\n\nimport torch\n", 1)
            + "for i, x in enumerate(data):\n    last = (i + 1) % 4 == 0\n"
            "    with nullcontext() if last else model.no_sync():\n        model(x).backward()\n",
            _HEAD_AFTER + "for i, x in enumerate(data):\n    last = (i + 1) % 4 == 0\n"
            "    model.set_requires_gradient_sync(last)\n    model(x).backward()\n",
            note="one call before the backward: the setting stays until the next one",
        ),
    ),
)
