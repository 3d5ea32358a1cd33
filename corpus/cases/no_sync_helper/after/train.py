import contextlib
import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


@contextlib.contextmanager
def maybe_no_sync(model, synchronize):
    """Context for one micro batch."""
    model.set_requires_gradient_sync(synchronize)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def warm_up(model, micro_batches):
    """Adds the gradients of micro batches up to the first bad one; returns the sum of losses."""
    total = 0.0
    for x in micro_batches:
        model.set_requires_gradient_sync(False)
        try:
            loss = model(x).square().mean()
            if not math.isfinite(loss.item()):
                break
            loss.backward()
        finally:
            model.set_requires_gradient_sync(True)
        total += loss.item()
    return total


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 18), nn.GELU(), nn.Linear(18, 3))
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8)

    data = torch.Generator().manual_seed(rank)
    for step in range(5):
        batches = [torch.randn(4, 6, generator=data).to(device) for _ in range(4)]
        total = warm_up(model, batches[:2])
        for i, x in enumerate(batches[2:]):
            with maybe_no_sync(model, i == 1):
                loss = (model(x) - x[:, :3]).abs().mean()
                loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {total!r}")

    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        torch.save(state, "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
