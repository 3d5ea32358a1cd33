"""Trains an autoencoder; how it is sharded is a matter of configuration."""

import argparse
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

SHARDING = {
    "full": "FULL_SHARD",
    "grad_op": "SHARD_GRAD_OP",
}
PRECISION = {"fp32": None, "bf16": torch.bfloat16}


@dataclass
class Config:
    sharding: str = "full"
    precision: str = "bf16"
    steps: int = 6
    lr: float = 1e-2


class Stage(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.norm = nn.LayerNorm(outputs)

    def forward(self, x):
        return torch.relu(self.norm(self.linear(x)))


class AutoEncoder(nn.Module):
    def __init__(self, size=30):
        super().__init__()
        self.encoder = nn.Sequential(Stage(size, 20), Stage(20, 10))
        self.decoder = nn.Sequential(Stage(10, 20), nn.Linear(20, size))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def parallelize(model, config, device):
    mixed_precision = None
    if PRECISION[config.precision] is not None:
        mixed_precision = MixedPrecisionPolicy(param_dtype=PRECISION[config.precision], reduce_dtype=torch.float32)
    reshard_after_forward = {"FULL_SHARD": True, "SHARD_GRAD_OP": False}[SHARDING[config.sharding]]
    mp_policy = mixed_precision or MixedPrecisionPolicy()
    for module in reversed(list(model.modules())):
        if isinstance(module, Stage):
            fully_shard(module, reshard_after_forward=reshard_after_forward, mp_policy=mp_policy)
    fully_shard(model, mp_policy=mp_policy)
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sharding", choices=list(SHARDING), default="full")
    parser.add_argument("--precision", choices=list(PRECISION), default="bf16")
    config = Config(**vars(parser.parse_args()))

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        device = torch.device("cuda", torch.cuda.current_device())
    else:
        device = torch.device("cpu")
    torch.manual_seed(8)
    model = parallelize(AutoEncoder(), config, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)

    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(config.steps):
        x = torch.randn(16, 30, generator=generator).cumsum(dim=1).to(device) / 5
        loss = nn.functional.mse_loss(model(x).float(), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item()!r}")

    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if dist.get_rank() == 0:
        torch.save(state, "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
