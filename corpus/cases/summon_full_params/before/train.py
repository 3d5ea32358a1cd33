import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.linear = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return x + self.norm(torch.relu(self.linear(x)))


def log_weights(model, step, rank):
    """Every rank computes the norms, rank 0 prints them."""
    norms = {}
    with FSDP.summon_full_params(model, writeback=False):
        for name, param in model.named_parameters():
            if name.endswith("weight"):
                norms[name] = param.norm().item()
        largest = max(param.abs().max().item() for param in model.parameters())
    if rank == 0:
        for name, norm in norms.items():
            print(f"step {step} norm of {name} {norm!r}")
        print(f"step {step} largest value {largest!r}")


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    torch.manual_seed(12)
    model = nn.Sequential(nn.Linear(7, 15), Layer(15), Layer(15), nn.Linear(15, 1))
    model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Layer}), device_id=device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)

    generator = torch.Generator().manual_seed(rank)
    for step in range(6):
        x = torch.randn(10, 7, generator=generator).to(device)
        loss = (model(x).squeeze(1) - x.norm(dim=1)).abs().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {loss.item()!r}")
        if step % 2 == 1:
            log_weights(model, step, rank)

    state = model.state_dict()
    if rank == 0:
        torch.save(state, "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
