"""Trains under DistributedDataParallel, saves at the end, and continues from a file it is given."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--resume")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 5))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    start = 0
    if arguments.resume:
        content = torch.load(arguments.resume, map_location="cpu")
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
        start = content["step"]
    for step in range(start, arguments.steps):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        loss = model(torch.randn(4, 6, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if dist.get_rank() == 0:
        content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": arguments.steps}
        torch.save(content, "last.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
