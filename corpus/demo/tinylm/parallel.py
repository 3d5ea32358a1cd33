"""Processes, devices, and how the model is spread over them."""

import functools
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import BackwardPrefetch, ShardingStrategy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from .model import DecoderBlock


def start():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def device():
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def is_main():
    return dist.get_rank() == 0


def shard(model):
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={DecoderBlock})
    return FSDP(
        model,
        auto_wrap_policy=policy,
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
        device_id=device(),
        limit_all_gathers=True,
    )
