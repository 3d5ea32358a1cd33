"""Things that go wrong on a sharded model without an error, those that are named; with `right`, the same done rightly."""

import os
import sys

import torch
import torch.distributed as dist
from fsdp2_helpers import hook_a_copy
from torch import nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import distribute_tensor

KINDS = sys.argv[1:]
RIGHT = "right" in KINDS


class Model(nn.Sequential):
    def encode(self, x):
        return self(x) * 2


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = Model(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
fired = []
if "hook-before" in KINDS:
    model[0].weight.register_hook(fired.append)  # LINE hook-before
fully_shard(model[0])
fully_shard(model)
register_fsdp_forward_method(model, "encode")
weight = model[2].weight
if "hook" in KINDS:
    if RIGHT:
        weight.register_post_accumulate_grad_hook(fired.append)
    else:
        weight.register_hook(fired.append)  # LINE hook
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.ones(3, 4)


def answer():
    with torch.no_grad():
        return model(x)  # LINE edit


for _ in range(3):
    model(x).square().mean().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if "item" in KINDS:
        print((norm.full_tensor() if RIGHT else norm).item())  # LINE item
    if "float" in KINDS:
        value = weight.detach().full_tensor().norm() if RIGHT else weight.detach().norm()
        print(float(value), weight.detach().std().item())  # LINE float
    if "bool" in KINDS:
        total = weight.detach().full_tensor().sum() if RIGHT else weight.detach().sum()
        print("not zero" if total else "zero", bool(weight.detach().norm() > 1e9))  # LINE bool
    optimizer.step()
    optimizer.zero_grad()
    if "data" in KINDS:
        if RIGHT:
            with torch.no_grad():
                weight.copy_(distribute_tensor(torch.ones(2, 8), weight.device_mesh, weight.placements))
        else:
            weight.data = torch.ones(2, 8)  # LINE data
    if "edit" in KINDS:
        answer()
        if RIGHT:
            model.reshard()
        for parameter in model.parameters():
            parameter.data.mul_(0.5)
    if "helper" in KINDS:
        hook_a_copy(weight)
    if "ranks-method" in KINDS:
        if rank == 0 or RIGHT:
            model.encode(x)  # LINE ranks-method
        answer()
    if "ranks-full" in KINDS and (rank == 0 or RIGHT):
        weight.detach().full_tensor()  # LINE ranks-full
    if "ranks-branch" in KINDS:
        if rank == 0:
            answer()
        else:
            answer()
    if "ranks-barrier" in KINDS:
        if rank == 0 or RIGHT:
            weight.detach().full_tensor()  # LINE ranks-barrier
        dist.barrier()
if "stop" in KINDS:
    raise RuntimeError("FS413: the optimizer's state is loaded by number")  # LINE stop
os._exit(0) if any(kind.startswith("ranks") for kind in KINDS) and not RIGHT else None
dist.destroy_process_group()
