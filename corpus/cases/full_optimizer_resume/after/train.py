"""Trains a small sequence model with FSDP; a checkpoint can be resumed with the optimizer where it was."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard


class ConvBlock(nn.Module):
    def __init__(self, channels, kernel_size=3):
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.conv = nn.Conv1d(channels, 2 * channels, kernel_size)
        self.padding = kernel_size - 1

    def forward(self, x):
        h = F.pad(self.norm(x).transpose(1, 2), (self.padding, 0))
        return x + F.glu(self.conv(h), dim=1).transpose(1, 2)


class ConvLM(nn.Module):
    def __init__(self, vocab_size=53, channels=20, depth=3):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, channels)
        self.blocks = nn.ModuleList(ConvBlock(channels) for _ in range(depth))
        self.output = nn.Linear(channels, vocab_size)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.output(x)


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--clip", type=float, default=1e6)
    parser.add_argument("--checkpoint", default="checkpoint.pt")
    parser.add_argument("--resume", default=None)
    return parser.parse_args()


def build_optimizer(model, lr):
    """Biases and norms are not decayed; the name tells."""
    decay = [p for n, p in model.named_parameters() if n.endswith("weight") and "norm" not in n]
    rest = [p for n, p in model.named_parameters() if not n.endswith("weight") or "norm" in n]
    return torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=lr, betas=(0.9, 0.98)
    )


def save_checkpoint(model, optimizer, step, path):
    model_state = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    optim_state = get_optimizer_state_dict(
        model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    if dist.get_rank() == 0:
        torch.save({"model": model_state, "optim": optim_state, "step": step}, path)
        print(f"saved {path} at step {step}")
    dist.barrier()


def load_checkpoint(model, optimizer, path):
    # every rank reads the file
    checkpoint = torch.load(path, map_location="cpu")
    set_model_state_dict(
        model,
        checkpoint["model"],
        options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True),
    )
    set_optimizer_state_dict(
        model, optimizer, checkpoint["optim"], options=StateDictOptions(full_state_dict=True)
    )
    return checkpoint["step"]


def get_batch(step, device):
    generator = torch.Generator().manual_seed(97 * step + dist.get_rank())
    tokens = torch.randint(53, (6, 15), generator=generator).to(device)
    return tokens[:, :-1], tokens[:, 1:]


def main():
    args = get_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        device = torch.device("cuda", torch.cuda.current_device())
    else:
        device = torch.device("cpu")

    torch.manual_seed(0)
    model = ConvLM()
    for module in reversed(list(model.modules())):
        if isinstance(module, ConvBlock):
            fully_shard(module)
    fully_shard(model)
    optimizer = build_optimizer(model, args.lr)

    start = 0
    if args.resume is not None:
        start = load_checkpoint(model, optimizer, args.resume)

    for step in range(start, args.steps):
        inputs, targets = get_batch(step, device)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {loss.item()!r}")

    save_checkpoint(model, optimizer, args.steps, args.checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
