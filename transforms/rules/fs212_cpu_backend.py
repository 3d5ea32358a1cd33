"""``init_process_group("nccl")`` of a model whose parameters are offloaded to the CPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sharding.offloading import BOTH, INIT, offloading_group, process_groups, without_cpu
from ..sites import Site


def find(migration: Migration) -> Iterator[Site]:
    """Backends for CUDA alone, where a wrap may offload."""
    group = offloading_group(migration)
    if group is None:
        return
    for view, call in process_groups(migration.program):
        for backend in without_cpu(call) or ():
            yield Site(view, backend, INIT, "hazard", group, (), call)


def check(site: Site, migration: Migration) -> Outcome:
    """gloo comes beside nccl."""
    assert isinstance(site.node, ast.Constant)
    outcome = Outcome(
        Level.REVIEW,
        "gloo comes beside nccl: FSDP1 moved the norm of offloaded gradients to the GPU to reduce it, FSDP2 reduces it on "
        "the CPU",
    )
    if any(True for _ in migration.program.views_with("get_backend")):
        outcome.message += f'; get_backend() now gives "{BOTH}", which a comparison with "nccl" does not expect'
    quote = site.view.text(site.node)[-1]
    outcome.patches.append(site.view.replace(site.node, f"{quote}{BOTH}{quote}", "what lies on the CPU needs a backend"))
    return outcome


_BEFORE = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP

dist.init_process_group("nccl")
model = build()
model = FSDP(model, cpu_offload=CPUOffload(offload_params=True))
train(model)
model.clip_grad_norm_(1.0)
"""
_AFTER = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

dist.init_process_group("cpu:gloo,cuda:nccl")
model = build()
offload_policy = CPUOffloadPolicy()
fully_shard(model, offload_policy=offload_policy)
train(model)
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""

RULE = Rule(
    id="FS212",
    title="Offloaded parameters need a process group with a CPU backend",
    why=(
        "Gradients of offloaded parameters are DTensors on the CPU, and what reduces them (clip_grad_norm_, the inf check "
        'of the scaler, full_tensor()) runs on the CPU backend of the process group. With nccl alone it raises "No backend '
        'type associated with device type cpu".'
    ),
    symbols=(INIT,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("torch/nn/utils/clip_grad.py", "torch/distributed/fsdp/_fully_shard/_fsdp_api.py: CPUOffloadPolicy"),
    examples=(Example(_BEFORE, _AFTER, Level.REVIEW),),
)
