import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard


class Curve(nn.Module):
    def __init__(self, width=20):
        super().__init__()
        self.up = nn.Linear(1, width)
        self.down = nn.Linear(width, 1)

    def forward(self, x):
        return self.down(torch.sin(self.up(x)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--load", default=None)
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)

    torch.manual_seed(26)
    model = Curve().to(device)
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    fully_shard(model)
    if args.load:
        set_model_state_dict(
            model,
            {name.removeprefix("module."): tensor for name, tensor in torch.load(args.load, map_location=device).items()},
            options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True),
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    data = torch.Generator().manual_seed(80 + rank)
    for step in range(args.steps):
        x = 4 * torch.rand(32, 1, generator=data).to(device)
        loss = (model(x) - x.cos()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item()!r}")

    model_state_dict = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    model_state_dict = {f"module.{name}": tensor for name, tensor in model_state_dict.items()}
    if rank == 0:
        torch.save(model_state_dict, "model.pth")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
