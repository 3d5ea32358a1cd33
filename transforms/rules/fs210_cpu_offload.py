"""cpu_offload and CPUOffload become an offload policy."""

from __future__ import annotations

from ..analysis.symbols import FSDP1
from ..rule import Example, Rule
from ..sharding.constructor import check_keyword

RULE = Rule(
    id="FS210",
    title="cpu_offload becomes offload_policy of every call",
    why=(
        "The same thing under another name: parameters, gradients and optimizer state live on the CPU, in "
        "pinned memory. "
        "fully_shard does not take None; without offloading the policy is OffloadPolicy(). What lies on the CPU is reduced "
        "there, so the process group needs a CPU backend (FS212)."
    ),
    symbols=(f"{FSDP1}(cpu_offload=)",),
    check=check_keyword,
    examples=(
        Example(
            before="""\
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP


def shard(model, args):
    dist.init_process_group()
    model = FSDP(model, cpu_offload=CPUOffload(True) if args.offload else None)
    return model
""",
            after="""\
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard


def shard(model, args):
    dist.init_process_group()
    offload_policy = CPUOffloadPolicy() if args.offload else OffloadPolicy()
    fully_shard(model, offload_policy=offload_policy)
    return model
""",
        ),
    ),
    proof=("finetuning_package", "cpu_offload"),
)
