import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard


class Mix(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = nn.Linear(width, width)
        self.b = nn.Linear(width, width, bias=False)

    def forward(self, x):
        return x + torch.relu(self.a(x)) - torch.relu(self.b(x))


def save_optimizer(model, optimizer, path):
    full_osd = get_optimizer_state_dict(
        model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    if dist.get_rank() == 0:
        torch.save(full_osd, path)


def load_optimizer_scattered(model, optimizer, path):
    # only rank 0 has the whole state in memory
    full_osd = torch.load(path) if dist.get_rank() == 0 else None
    if full_osd:
        for state in full_osd["state"].values():
            # parameters of one flat parameter share their step in files of FSDP1
            state.update({key: value.clone() for key, value in state.items() if torch.is_tensor(value)})
    set_optimizer_state_dict(
        model, optimizer, full_osd, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    )


def load_optimizer_sharded(model, optimizer, path):
    full_osd = torch.load(path)
    for state in full_osd["state"].values():
        # parameters of one flat parameter share their step in files of FSDP1
        state.update({key: value.clone() for key, value in state.items() if torch.is_tensor(value)})
    set_optimizer_state_dict(
        model, optimizer, full_osd, options=StateDictOptions(full_state_dict=True)
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--load", choices=["scatter", "shard"], default="scatter")
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    torch.manual_seed(29)
    model = nn.Sequential(nn.Linear(6, 13), Mix(13), Mix(13), nn.Linear(13, 2))
    if args.resume:
        model.load_state_dict(torch.load("model.pt"))
    for module in reversed(list(model.modules())):
        if isinstance(module, Mix):
            fully_shard(module)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    if args.resume:
        if args.load == "scatter":
            load_optimizer_scattered(model, optimizer, "optimizer.pt")
        else:
            load_optimizer_sharded(model, optimizer, "optimizer.pt")

    data = torch.Generator().manual_seed(rank + 10 * args.resume)
    for step in range(args.steps):
        x = torch.randn(8, 6, generator=data).to(device)
        loss = (model(x) - x[:, 2:4]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {loss.item()!r}")

    save_optimizer(model, optimizer, "optimizer.pt")
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        torch.save(state, "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
