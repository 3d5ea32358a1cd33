"""limit_all_gathers and use_orig_params: what they asked for is how FSDP2 always works."""

from __future__ import annotations

from ..analysis.symbols import FSDP1
from ..findings import Level
from ..rule import Example, Rule
from ..sharding.constructor import check_keyword

RULE = Rule(
    id="FS109",
    title="limit_all_gathers and use_orig_params go",
    why=(
        "FSDP2 has one parameter object for each original parameter and bounds gathered memory by itself. Only code "
        "that looks at dimensions notices: sharded parameters of FSDP1 were flat (no parameter of 41 had p.dim() >= 2, "
        "so a weight-decay split built after the wrap decayed nothing), those of FSDP2 keep their shapes."
    ),
    symbols=(f"{FSDP1}(limit_all_gathers=)", f"{FSDP1}(use_orig_params=)"),
    check=check_keyword,
    examples=(
        Example(
            before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model):
    model = FSDP(model, use_orig_params=True, limit_all_gathers=True)
    return model
""",
            after="""\
from torch.distributed.fsdp import fully_shard


def shard(model):
    fully_shard(model)
    return model
""",
        ),
        Example(
            before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model):
    model = FSDP(model, use_orig_params=False)
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    return torch.optim.AdamW([{"params": decay}, {"params": rest, "weight_decay": 0.0}])
""",
            after="""\
import torch
from torch.distributed.fsdp import fully_shard


def shard(model):
    fully_shard(model)
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    return torch.optim.AdamW([{"params": decay}, {"params": rest, "weight_decay": 0.0}])
""",
            level=Level.REVIEW,
        ),
    ),
    proof=("trainer_class", "finetuning_package", "lora", "hf_llama"),
)
