import argparse
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
from checkpoint import export, load, save
from clipping import clip
from wrapping import unwrap, wrap


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.hidden = nn.Linear(width, 3 * width)
        self.back = nn.Linear(3 * width, width)

    def forward(self, x):
        return x + self.back(torch.relu(self.hidden(self.norm(x))))


class Classifier(nn.Module):
    def __init__(self, inputs=13, width=19, classes=5, depth=2):
        super().__init__()
        self.classes = classes
        self.embed = nn.Linear(inputs, width)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.blocks(self.embed(x)))


def train_step(model, optimizer, batches, limit):
    optimizer.zero_grad()
    total = 0.0
    for number, (x, y) in enumerate(batches):
        is_last = number == len(batches) - 1
        with nullcontext() if is_last else model.no_sync():
            loss = nn.functional.cross_entropy(model(x), y) / len(batches)
            loss.backward()
        total += loss.item()
    norm = clip(model, limit)
    optimizer.step()
    return total, norm


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--parallel", choices=["fsdp", "ddp"], default="fsdp")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")

    torch.manual_seed(5)
    model = wrap(Classifier().to(device), args.parallel, device, {Block})
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    first = load("last.pt", model, optimizer) if args.resume else 0
    classes = unwrap(model).classes

    for step in range(first, first + args.steps):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        batches = []
        for _ in range(3):
            x = torch.randn(8, 13, generator=generator).to(device)
            batches.append((x, x.abs().sum(dim=1).long() % classes))
        loss, norm = train_step(model, optimizer, batches, limit=0.5)
        if rank == 0:
            print(f"step {step} loss {loss!r} norm {norm!r}")

    save("last.pt", model, optimizer, first + args.steps, rank)
    export("model.pt", model, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
