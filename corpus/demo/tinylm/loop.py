"""The training loop. It knows nothing about how the model is spread."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F

from . import parallel

TEXT = "Training code outlives the interfaces that it was written for; what it computes should outlive them, too. " * 8


def batches(size, length):
    data = torch.tensor([ord(c) - 32 for c in TEXT])
    generator = torch.Generator().manual_seed(dist.get_rank())
    while True:
        starts = torch.randint(len(data) - length - 1, (size,), generator=generator).tolist()
        rows = torch.stack([data[start : start + length + 1] for start in starts]).to(parallel.device())
        yield rows[:, :-1], rows[:, 1:]


def fit(network, optimizer, steps, accumulate, max_norm):
    stream = batches(size=8, length=24)
    for step in range(steps):
        total = 0.0
        for micro in range(accumulate):
            inputs, targets = next(stream)
            # gradients are reduced with the last micro batch only
            context = network.no_sync() if micro != accumulate - 1 else nullcontext()
            with context:
                loss = F.cross_entropy(network(inputs).flatten(0, 1), targets.flatten()) / accumulate
                loss.backward()
            total += loss.item()
        norm = network.clip_grad_norm_(max_norm)
        optimizer.step()
        optimizer.zero_grad()
        if parallel.is_main():
            print(f"step {step}: loss {total:.5f}, gradient norm {norm:.5f}")
