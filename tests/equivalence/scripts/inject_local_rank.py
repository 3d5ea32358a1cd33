"""In the style of torch.distributed.launch: the local rank is an argument."""

import argparse

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--local-rank", "--local_rank", type=int, required=True)
options = parser.parse_args()
torch.cuda.set_device(options.local_rank)
dist.init_process_group("nccl", init_method="env://")
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Linear(4, 2).to(options.local_rank), device_ids=[options.local_rank]
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4, device=options.local_rank)).sum().backward()
optimizer.step()
