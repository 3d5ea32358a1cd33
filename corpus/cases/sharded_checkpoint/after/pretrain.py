import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from checkpointing import Checkpointer
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import (
    MixedPrecisionPolicy,
    fully_shard,
)


class MixerBlock(nn.Module):
    def __init__(self, tokens, channels):
        super().__init__()
        self.norm_tokens = nn.LayerNorm(channels)
        self.mix_tokens = nn.Linear(tokens, tokens)
        self.norm_channels = nn.LayerNorm(channels)
        self.mix_channels = nn.Sequential(nn.Linear(channels, 2 * channels), nn.GELU(), nn.Linear(2 * channels, channels))

    def forward(self, x):
        x = x + self.mix_tokens(self.norm_tokens(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mix_channels(self.norm_channels(x))


class Mixer(nn.Module):
    def __init__(self, patch=12, tokens=9, channels=16, depth=3):
        super().__init__()
        self.embed = nn.Linear(patch, channels)
        self.blocks = nn.ModuleList([MixerBlock(tokens, channels) for _ in range(depth)])
        self.decode = nn.Linear(channels, patch)

    def forward(self, patches):
        x = self.embed(patches)
        for block in self.blocks:
            x = block(x)
        return self.decode(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--until", type=int, default=8)
    parser.add_argument("--save-every", type=int, default=4)
    parser.add_argument("--checkpoints", default="checkpoints")
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    torch.manual_seed(3)
    bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = Mixer()
    for module in reversed(list(model.modules())):
        if isinstance(module, MixerBlock):
            fully_shard(module, mp_policy=bf16)
    fully_shard(model, mp_policy=bf16)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    checkpointer = Checkpointer(args.checkpoints)
    step = checkpointer.latest() or 0
    if step:
        checkpointer.load(model, optimizer, step)

    while step < args.until:
        generator = torch.Generator().manual_seed(10 * step + rank)
        patches = torch.randn(6, 9, 12, generator=generator).to(device)
        masked = patches * (torch.rand(6, 9, 1, generator=generator) > 0.4).to(device)
        loss = (model(masked).float() - patches).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if rank == 0:
            print(f"step {step} loss {loss.item()!r}")
        if step % args.save_every == 0:
            checkpointer.save(model, optimizer, step)

    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        torch.save(weights, "weights.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
