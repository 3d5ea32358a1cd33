"""resume_old.py under fully_shard: the file keeps its form, and old files with numbered states are understood."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

FULL = StateDictOptions(full_state_dict=True)


def named(state, model):
    """An optimizer's state dict with names for the numbers that DistributedDataParallel's files have."""
    names = [name for name, _ in model.named_parameters()]
    (group,) = state["param_groups"]
    known = dict(zip(group["params"], names, strict=True))
    return {
        "state": {known[number]: values for number, values in state["state"].items()},
        "param_groups": [{**group, "params": names}],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--resume")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 5))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    start = 0
    if arguments.resume:
        content = torch.load(arguments.resume, map_location="cpu")
        weights = {name.removeprefix("module."): value for name, value in content["model"].items()}
        set_model_state_dict(model, weights, options=FULL)
        set_optimizer_state_dict(model, optimizer, named(content["optimizer"], model), options=FULL)
        start = content["step"]
    for step in range(start, arguments.steps):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        loss = model(torch.randn(4, 6, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = {f"module.{name}": value for name, value in get_model_state_dict(model, options=FULL).items()}
    content = {"model": weights, "optimizer": get_optimizer_state_dict(model, optimizer, options=FULL)}
    if dist.get_rank() == 0:
        torch.save({**content, "step": arguments.steps}, "last.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
