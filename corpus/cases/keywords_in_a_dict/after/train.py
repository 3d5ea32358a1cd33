import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Net(nn.Module):
    def __init__(self, width=16, depth=3):
        super().__init__()
        self.inputs = nn.Linear(8, width)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width)) for _ in range(depth))
        self.outputs = nn.Linear(width, 8)

    def forward(self, x):
        x = self.inputs(x)
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.outputs(x)


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    torch.manual_seed(33)
    model = Net().to(device)
    fsdp_kwargs = {
        "reshard_after_forward": False,
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16),
    }
    for layer in model.layers:
        fully_shard(layer, **fsdp_kwargs)
    fully_shard(model, **fsdp_kwargs)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)

    data = torch.Generator().manual_seed(rank)
    for step in range(6):
        x = torch.randn(8, 8, generator=data).to(device)
        loss = (model(x).float() - x.cumsum(dim=1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {loss.item()!r}")

    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        torch.save(state, "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
