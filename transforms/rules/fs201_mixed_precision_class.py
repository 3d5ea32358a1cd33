"""MixedPrecision becomes MixedPrecisionPolicy."""

from __future__ import annotations

from ..findings import Level
from ..rule import Example, Rule
from ..sharding.precision import MIXED_PRECISION
from ..sharding.precision_classes import check_precision

RULE = Rule(
    id="FS201",
    title="MixedPrecision becomes MixedPrecisionPolicy",
    why=(
        "param_dtype and reduce_dtype mean the same (bitwise equal in every combination). buffer_dtype has no "
        "counterpart: FSDP2 leaves buffers alone, which moved losses by 4e-4 to 4e-3 where a model has float buffers. "
        "With no_sync FSDP1 adds up gradients in param_dtype, FSDP2 in reduce_dtype, which is more exact."
    ),
    symbols=(MIXED_PRECISION, f"{MIXED_PRECISION}(*"),
    roles=("call", "keyword", "reference", "annotation", "isinstance"),
    check=check_precision,
    examples=(
        Example(
            before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

bf16 = MixedPrecision(
    param_dtype=torch.bfloat16,
    # gradients are reduced in full
    reduce_dtype=torch.float32,
    # buffers, too
    buffer_dtype=torch.float32,
)


def shard(model):
    model = FSDP(model, mixed_precision=bf16)
    return model
""",
            after="""\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

bf16 = MixedPrecisionPolicy(
    param_dtype=torch.bfloat16,
    # gradients are reduced in full
    reduce_dtype=torch.float32,
)


def shard(model):
    fully_shard(model, mp_policy=bf16)
    return model
""",
        ),
        Example(
            before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def shard(model):
    precision = MixedPrecision(param_dtype=torch.bfloat16, keep_low_precision_grads=True)
    return FSDP(model, mixed_precision=precision)
""",
            after="""\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def shard(model):
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    fully_shard(model, mp_policy=precision)
    return model
""",
            level=Level.REVIEW,
        ),
    ),
    proof=("finetuning_package", "lora", "hybrid_shard"),
)
