import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)

    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(10, 25), nn.Tanh(), nn.Linear(25, 25), nn.Tanh(), nn.Linear(25, 2)).to(device)
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    data = torch.Generator().manual_seed(40 + rank)
    for step in range(6):
        micro_batches = [torch.randn(8, 10, generator=data).to(device) for _ in range(3)]
        total = 0.0
        for x in micro_batches[:-1]:
            model.set_requires_gradient_sync(False)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = (model(x) - x[:, :2].sin()).square().mean() / 3
            loss.backward()
            model.set_requires_gradient_sync(True)
            total += loss.item()
        x = micro_batches[-1]
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = (model(x) - x[:, :2].sin()).square().mean() / 3
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {total + loss.item()!r}")

    model_state_dict = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    if rank == 0:
        torch.save(model_state_dict, "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
