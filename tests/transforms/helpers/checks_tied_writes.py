"""Forwards that write parameters which are tied, on two ranks. Run by test_tied_writes.py."""

from __future__ import annotations

import copy
from typing import Any

import torch
from to_fsdp2.transforms.helpers.ddp import shard_like_ddp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Averaging(nn.Module):
    """A model with an average of itself that its forward keeps, both with one weight in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.ModuleList([nn.Linear(4, 4, bias=False) for _ in range(2)])
        self.online[0].weight = self.online[1].weight
        self.average = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: Any = self.online[1](self.online[0](x))
        with torch.no_grad():
            for p, mean in zip(self.online.parameters(), self.average.parameters(), strict=True):
                mean.data = mean.data * 0.9 + p.data * 0.1
            z: Any = self.average[1](self.average[0](x))
        return ((y - z - 1) ** 2).mean()


def check_tied_parameters_are_written_once() -> None:
    torch.manual_seed(0)
    net = Averaging()
    models: list[Any] = [DDP(copy.deepcopy(net)), shard_like_ddp(net)]
    losses: list[list[float]] = [[], []]
    for model, found in zip(models, losses, strict=True):
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        for step in range(5):
            loss = model(torch.randn(8, 4, generator=torch.Generator().manual_seed(step)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    assert torch.allclose(torch.tensor(losses[0]), torch.tensor(losses[1]), atol=1e-6), losses
