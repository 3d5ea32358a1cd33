"""Ranks with other numbers of batches: under Join (old), and with empty work for those that have run out (new)."""

import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import fully_shard


def batches(rank):
    generator = torch.Generator().manual_seed(rank)
    for _ in range(2 + 2 * rank):
        yield torch.randn(4, 4, generator=generator)


def kept_in_step(own):
    while True:
        batch = next(own, None)
        left = torch.tensor(float(batch is not None))
        dist.all_reduce(left)
        if not left:
            return
        yield batch


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
old = sys.argv[1] == "join"
if old:
    model = nn.parallel.DistributedDataParallel(model)
else:
    fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    with Join([model]) if old else nullcontext():
        for batch in batches(rank) if old else kept_in_step(batches(rank)):
            optimizer.zero_grad()
            loss = model(torch.zeros(1, 4) if batch is None else batch).square().mean()
            (loss * 0 if batch is None else loss).backward()
            optimizer.step()
dist.barrier()
dist.destroy_process_group()
