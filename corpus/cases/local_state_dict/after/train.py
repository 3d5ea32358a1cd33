import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard


class Stage(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.mix(self.norm(x)))


class Encoder(nn.Module):
    def __init__(self, inputs=7, width=12, depth=3):
        super().__init__()
        self.embed = nn.Linear(inputs, width)
        self.stages = nn.ModuleList(Stage(width) for _ in range(depth))
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = self.embed(x)
        for stage in self.stages:
            x = stage(x)
        return self.head(x)


class RankFiles:
    """A file per rank and save, and one that names the last."""

    def __init__(self, model, optimizer, folder):
        self.model = model
        self.optimizer = optimizer
        self.folder = folder
        os.makedirs(folder, exist_ok=True)

    def last(self):
        path = os.path.join(self.folder, f"last.rank_{dist.get_rank()}")
        if not os.path.exists(path):
            return None
        with open(path) as file:
            return os.path.join(self.folder, file.read().strip())

    def save(self, step):
        config = StateDictOptions()
        state = {
            "model": get_model_state_dict(self.model, options=config),
            "optimizer": get_optimizer_state_dict(self.model, self.optimizer),
            "step": step,
        }
        name = f"step_{step}.rank_{dist.get_rank()}.pth"
        torch.save(state, os.path.join(self.folder, name))
        dist.barrier()
        with open(os.path.join(self.folder, f"last.rank_{dist.get_rank()}"), "w") as file:
            file.write(name)

    def load(self, path):
        state = torch.load(path, map_location="cpu", weights_only=False)
        set_model_state_dict(self.model, state["model"])
        set_optimizer_state_dict(self.model, self.optimizer, state["optimizer"])
        return state["step"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--until", type=int, default=6)
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    torch.manual_seed(1)
    model = Encoder()
    for module in reversed(list(model.modules())):
        if isinstance(module, Stage):
            fully_shard(module)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)

    files = RankFiles(model, optimizer, "shards")
    last = files.last()
    step = files.load(last) if last is not None else 0
    if rank == 0:
        print(f"start at step {step}")

    while step < args.until:
        generator = torch.Generator().manual_seed(100 * step + rank)
        features = torch.randn(8, 7, generator=generator).to(device)
        targets = torch.randint(5, (8,), generator=generator).to(device)
        loss = nn.functional.cross_entropy(model(features), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0:
            print(f"step {step} loss {loss.item()!r}")
    files.save(step)

    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        torch.save(weights, "weights.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
