import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from checkpoints import Checkpoints
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


class Gated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, x):
        y = self.norm(x)
        return x + torch.sigmoid(self.gate(y)) * self.value(y)


class Regressor(nn.Module):
    def __init__(self, features=7, width=20, depth=3):
        super().__init__()
        self.encode = nn.Linear(features, width)
        self.layers = nn.Sequential(*[Gated(width) for _ in range(depth)])
        self.decode = nn.Linear(width, 1)

    def forward(self, x):
        return self.decode(self.layers(self.encode(x)))


def weights_of(model, state_dict_type):
    assert state_dict_type in ("FULL_STATE_DICT", "SHARDED_STATE_DICT"), state_dict_type
    weights = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=state_dict_type == "FULL_STATE_DICT")
    )
    return weights


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--until", type=int, default=6)
    parser.add_argument("--kind", default="full")
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    torch.manual_seed(21)
    model = Regressor()
    for module in reversed(list(model.modules())):
        if isinstance(module, Gated):
            fully_shard(module)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    checkpoints = Checkpoints(model, optimizer, {"kind": args.kind, "folder": "checkpoints"})
    step = checkpoints.load()

    while step < args.until:
        generator = torch.Generator().manual_seed(100 * rank + step)
        inputs = torch.randn(8, 7, generator=generator)
        targets = inputs.prod(dim=1, keepdim=True)
        loss = nn.functional.smooth_l1_loss(model(inputs.to(device)), targets.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if rank == 0:
            print(f"step {step} loss {loss.item()!r}")
    checkpoints.save(step)

    shards = weights_of(model, "SHARDED_STATE_DICT")
    weights = weights_of(model, "FULL_STATE_DICT")
    if rank == 0:
        print(f"{len(shards)} tensors, the first one of shape {tuple(shards['encode.weight'].shape)}")
        torch.save(weights, "weights.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
