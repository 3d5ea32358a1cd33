"""device_id: fully_shard goes by the device of its mesh."""

from __future__ import annotations

from ..analysis.symbols import FSDP1
from ..findings import Level
from ..rule import Example, Rule
from ..sharding.constructor import check_keyword

RULE = Rule(
    id="FS220",
    title="device_id goes",
    why=(
        "fully_shard moves parameters and buffers to the current device of its mesh's type. A program that named the "
        "device in the constructor alone has to set it before, or all ranks of a node meet on device 0."
    ),
    symbols=(f"{FSDP1}(device_id=)",),
    check=check_keyword,
    examples=(
        Example(
            before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model):
    model = FSDP(model, device_id=torch.cuda.current_device())
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
import os

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model):
    model = FSDP(model, device_id=int(os.environ["LOCAL_RANK"]))
    return torch.compile(model)
""",
            after="""\
import os

import torch
from torch.distributed.fsdp import fully_shard


def shard(model):
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    fully_shard(model)
    return torch.compile(model)
""",
            level=Level.REVIEW,
        ),
    ),
    proof=("trainer_class", "finetuning_package", "lora", "hf_llama"),
)
