import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpu-offload", action="store_true", help="keep parameters in host memory")
    args = parser.parse_args()

    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))

    torch.manual_seed(22)
    sharded_model = nn.Sequential(nn.Linear(5, 17), nn.Softplus(), nn.Linear(17, 5))
    offload_policy = CPUOffloadPolicy() if args.cpu_offload else OffloadPolicy()
    fully_shard(sharded_model, offload_policy=offload_policy)
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

    state = get_model_state_dict(sharded_model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        torch.save(state, "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
