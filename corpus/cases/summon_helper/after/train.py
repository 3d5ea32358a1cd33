import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from average import Average, full_parameters
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mix = nn.Linear(dim, dim)

    def forward(self, x):
        return x + torch.relu(self.mix(self.norm(x)))


class Tagger(nn.Module):
    """Embedding and output share their weight; the scale is frozen."""

    def __init__(self, words=23, dim=15):
        super().__init__()
        self.embed = nn.Embedding(words, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(dim), requires_grad=False)
        self.head = nn.Linear(dim, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words):
        x = self.embed(words)
        for block in self.blocks:
            x = block(x)
        return self.head(x * self.scale)


def evaluate(model, words):
    model.eval()
    with torch.no_grad():
        loss = F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
    model.train()
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep-gathered", action="store_true")
    parser.add_argument("--bfloat16", action="store_true")
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    torch.manual_seed(5)
    model = Tagger()
    reshard_after_forward = not args.keep_gathered
    mp_policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if args.bfloat16 else MixedPrecisionPolicy()
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(module, reshard_after_forward=reshard_after_forward, mp_policy=mp_policy)
    fully_shard(model, mp_policy=mp_policy)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=2e-2)
    average = Average(model, decay=0.8)

    generator = torch.Generator().manual_seed(rank)
    for step in range(6):
        words = torch.randint(23, (4, 9), generator=generator).to(device)
        loss = F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 0:
            average.update(model)
        if rank == 0:
            print(f"step {step} loss {loss.item()!r}")
        if step % 3 == 2:
            average.swap(model)
            result = evaluate(model, words)
            average.swap(model)
            if rank == 0:
                print(f"step {step} average {result!r}")

    with full_parameters(model, writeback=False):
        if rank == 0:
            torch.save({name: param.detach().clone() for name, param in model.named_parameters()}, "model.pt")
            torch.save(average.weights, "average.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
