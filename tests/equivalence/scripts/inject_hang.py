"""Rank 0 alone saves, and gathering is collective: the other rank goes on to the barrier of another group."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(3))  # the line that rank 0 waits in
else:
    while True:
        time.sleep(0.1)  # the line that rank 1 is at
