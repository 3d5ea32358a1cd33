"""BatchNorm under DistributedDataParallel, which sends rank 0's statistics before each forward pass, or without it."""

import copy
import pickle
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
model.eval()
model = pickle.loads(pickle.dumps(copy.deepcopy(model)))  # what the recorder hangs on it has to go along
if sys.argv[1] == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
else:
    fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for _ in range(3):
    model.train()
    model(torch.randn(6, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if sys.argv[1] == "broadcast":
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)
    model.eval()
    with torch.no_grad():
        model(torch.ones(6, 4) * rank)
dist.destroy_process_group()
