import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class FeedForward(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        return x + self.layers(x)


class Regressor(nn.Module):
    def __init__(self, inputs=11, dim=21, depth=2):
        super().__init__()
        self.project = nn.Linear(inputs, dim)
        self.blocks = nn.Sequential(*[FeedForward(dim) for _ in range(depth)])
        self.output = nn.Linear(dim, 1)

    def forward(self, x):
        return self.output(self.blocks(self.project(x))).squeeze(-1)


def setup(parallel):
    if parallel == "none":
        return 0, torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        return dist.get_rank(), torch.device("cuda", torch.cuda.current_device())
    return dist.get_rank(), torch.device("cpu")


def get_state(model, parallel):
    if parallel == "fsdp":
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    elif parallel == "ddp":
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    else:
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    return state


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--parallel", choices=["fsdp", "ddp", "none"], default="fsdp")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--clip", type=float, default=1.0)
    args = parser.parse_args()

    rank, device = setup(args.parallel)
    torch.manual_seed(31)
    model = Regressor().to(device)
    if args.parallel == "fsdp":
        if torch.cuda.is_available():
            for tensor in [*model.parameters(), *model.buffers()]:
                dist.broadcast(tensor.detach(), src=0)
        for module in reversed(list(model.modules())):
            if isinstance(module, FeedForward):
                fully_shard(module)
        fully_shard(model)
    elif args.parallel == "ddp":
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.detach(), src=0)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    generator = torch.Generator().manual_seed(100 + rank)
    for step in range(args.steps):
        x = torch.randn(16, 11, generator=generator).to(device)
        loss = nn.functional.mse_loss(model(x), x.square().mean(dim=1))
        optimizer.zero_grad()
        loss.backward()
        if args.parallel == "fsdp":
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip).full_tensor()
        else:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            if isinstance(norm, DTensor):
                norm = norm.full_tensor()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item()!r} norm {norm.item()!r}")

    state = get_state(model, args.parallel)
    if rank == 0:
        torch.save(state, "model.pt")
    if args.parallel != "none":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
