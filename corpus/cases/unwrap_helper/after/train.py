import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from utils import clean_names, count_units, is_sharded, unwrap_model


class Gate(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.value = nn.Linear(dim, dim)
        self.gate = nn.Linear(dim, dim)

    def forward(self, x):
        return x + self.value(x) * self.gate(x).sigmoid()


class Net(nn.Module):
    def __init__(self, dim=14):
        super().__init__()
        self.gates = nn.Sequential(Gate(dim), Gate(dim))
        self.out = nn.Linear(dim, 1)
        self.temperature = 2.0

    def forward(self, x):
        return self.out(self.gates(x)).squeeze(1) / self.temperature


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    torch.manual_seed(15)
    model = Net()
    for module in reversed(list(model.modules())):
        if isinstance(module, Gate):
            fully_shard(module)
    fully_shard(model)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    if rank == 0:
        print(f"sharded: {is_sharded(model)}, units: {count_units(model)}, temperature {unwrap_model(model).temperature}")
        print("\n".join(clean_names(model)))

    data = torch.Generator().manual_seed(rank)
    for step in range(5):
        x = torch.randn(8, 14, generator=data).to(device)
        loss = (model(x) - x.std(dim=1)).square().mean()
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
