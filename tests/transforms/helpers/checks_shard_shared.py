"""Models that have a part in common, each in a wrapper of its own: an actor and a critic over one encoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from models import close, gathered
from shard_models import WIDTH, Residual, rank
from to_fsdp2.transforms.helpers.ddp import shard_like_ddp
from to_fsdp2.transforms.helpers.whole import whole
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Encoder(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.Sequential(*(Residual() for _ in range(blocks)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(self.first(x).tanh())


class Head(nn.Module):
    def __init__(self, encoder: nn.Module, outputs: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


def trained(wrap: Callable[[Any], Any], blocks: int, in_one_backward: bool) -> list[Any]:
    torch.manual_seed(0)
    encoder = Encoder(blocks)
    actor, critic = wrap(Head(encoder, 3)), wrap(Head(encoder, 1))
    unique = list(dict.fromkeys([*actor.parameters(), *critic.parameters()]))
    optimizers = [torch.optim.Adam(unique, 1e-2)] if in_one_backward else [
        torch.optim.Adam(actor.parameters(), 1e-2), torch.optim.Adam(critic.parameters(), 1e-2)]  # fmt: skip
    torch.manual_seed(rank())
    losses = []
    for _ in range(4):
        x = torch.randn(4, WIDTH)
        if in_one_backward:
            loss = actor(x).square().mean() + critic(x).abs().mean()
            optimizers[0].zero_grad()
            loss.backward()
            optimizers[0].step()
            losses.append(loss.item())
        else:
            for model, optimizer in zip((actor, critic), optimizers, strict=True):
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        with torch.no_grad():
            losses.append(critic(x).mean().item())
    assert len({tuple(p.flatten().tolist()) for p in gathered(whole(next(encoder.parameters())).detach())}) == 1
    return [losses, [whole(p.detach()).clone() for p in unique]]


def check_a_part_in_two_wrappers_trains_as_in_ddp() -> None:
    for blocks in (1, 3):  # three are units of the first model
        for in_one_backward in (False, True):
            results = [trained(wrap, blocks, in_one_backward) for wrap in (DDP, shard_like_ddp)]
            assert close(results[0], results[1], 1e-5), (blocks, in_one_backward)


def check_a_part_goes_on_training_in_another_wrapper() -> None:
    """A head after the other, each with parameters that a step leaves out; the device is the one that all is on."""
    for finds_unused in (True, False):
        results = [trained_in_turn(wrap, finds_unused) for wrap in (DDP, shard_like_ddp)]
        assert close(results[0], results[1], 1e-6), finds_unused


def trained_in_turn(wrap: Callable[..., Any], finds_unused: bool) -> list[Any]:
    torch.manual_seed(0)
    encoder = Encoder(3)
    if finds_unused:
        encoder.unused = nn.Linear(2, 2)
    losses = []
    for outputs in (3, 1):
        model = wrap(Head(encoder, outputs).to("cpu"), find_unused_parameters=finds_unused)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
        for step in range(3):
            loss = model(torch.full((2, WIDTH), 0.1 * (step + rank()))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return [losses, [whole(p.detach()).clone() for p in encoder.parameters()]]
