import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, ShardingStrategy


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpu-offload", action="store_true", help="keep parameters in host memory")
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))

    torch.manual_seed(22)
    sharded_model = FullyShardedDataParallel(
        nn.Sequential(nn.Linear(5, 17), nn.Softplus(), nn.Linear(17, 5)),
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        cpu_offload=CPUOffload(offload_params=args.cpu_offload),
        device_id=torch.cuda.current_device() if torch.cuda.is_available() else torch.device("cpu"),
    )
    optimizer = torch.optim.NAdam(sharded_model.parameters(), lr=1e-2)

    data = torch.Generator().manual_seed(rank)
    for step in range(6):
        x = torch.randn(8, 5, generator=data)
        if torch.cuda.is_available():
            x = x.cuda()
        loss = (sharded_model(x) - x.abs()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {loss.item()!r}")

    state = sharded_model.state_dict()
    if rank == 0:
        torch.save(state, "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
