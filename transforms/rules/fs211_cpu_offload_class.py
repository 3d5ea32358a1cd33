"""CPUOffload becomes CPUOffloadPolicy or OffloadPolicy."""

from __future__ import annotations

from ..rule import Example, Rule
from ..sharding.precision import CPU_OFFLOAD
from ..sharding.precision_classes import check_offload

RULE = Rule(
    id="FS211",
    title="CPUOffload becomes CPUOffloadPolicy",
    why="FSDP2 has a policy for each case instead of one class with a flag.",
    symbols=(CPU_OFFLOAD, f"{CPU_OFFLOAD}(*"),
    roles=("call", "keyword", "reference", "annotation", "isinstance"),
    check=check_offload,
    examples=(
        Example(
            before="""\
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP


def offloading(args):
    return CPUOffload(offload_params=args.offload)


def shard(model, args):
    model = FSDP(model, cpu_offload=offloading(args))
    return model
""",
            after="""\
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard


def offloading(args):
    return CPUOffloadPolicy() if args.offload else OffloadPolicy()


def shard(model, args):
    offload_policy = offloading(args)
    fully_shard(model, offload_policy=offload_policy)
    return model
""",
        ),
    ),
    proof=("finetuning_package", "cpu_offload"),
)
