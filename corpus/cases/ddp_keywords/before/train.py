import os

import torch
import torch.distributed as dist
from torch import nn


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)

    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(10, 25), nn.Tanh(), nn.Linear(25, 25), nn.Tanh(), nn.Linear(25, 2)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    model = nn.parallel.DistributedDataParallel(
        model,
        device_ids=[local_rank] if device.type == "cuda" else None,
        bucket_cap_mb=1,
        gradient_as_bucket_view=True,
        find_unused_parameters=False,
        static_graph=False,
    )

    data = torch.Generator().manual_seed(40 + rank)
    for step in range(6):
        micro_batches = [torch.randn(8, 10, generator=data).to(device) for _ in range(3)]
        total = 0.0
        for x in micro_batches[:-1]:
            with model.no_sync():
                with torch.autocast(device.type, dtype=torch.bfloat16):
                    loss = (model(x) - x[:, :2].sin()).square().mean() / 3
                loss.backward()
            total += loss.item()
        x = micro_batches[-1]
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = (model(x) - x[:, :2].sin()).square().mean() / 3
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {total + loss.item()!r}")

    if rank == 0:
        torch.save(model.module.state_dict(), "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
