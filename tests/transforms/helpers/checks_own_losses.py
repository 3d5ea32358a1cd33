"""What own_losses.py must do on two ranks: gradients of a rank's own losses, of which ranks have another number."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import batch, build, close, parameters_of
from to_fsdp2.transforms.helpers.ddp import shard_like_ddp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


def models(net: nn.Module, **options: Any) -> list[Any]:
    return [DDP(net, **options), shard_like_ddp(copy.deepcopy(net), **options)]


class Warm(nn.Module):
    """With a parameter of no dimension, which stays plain, and unused ones."""

    def __init__(self) -> None:
        super().__init__()
        net = build("plain")
        self.emb, self.layers, self.head = net.emb, net.layers, net.head
        self.temperature, self.unused = nn.Parameter(torch.tensor(2.0)), nn.Linear(2, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers[1](self.layers[0](self.emb(ids)))) * self.temperature


def losses_of(model: Any, step: int) -> list[torch.Tensor]:
    """One loss on rank 0, three on rank 1."""
    ids, targets = batch(step)
    logits = model(ids)
    losses = [F.cross_entropy(logits, targets), logits.square().mean(), logits[0].abs().sum()]
    return losses[: 1 + 2 * dist.get_rank()]


def balanced(model: Any, losses: list[torch.Tensor]) -> torch.Tensor:
    """Losses weighted by the norms of their gradients, as in "balanced" and adaptive losses."""
    last = getattr(model, "module", model).layers[0].down.weight
    norms = [torch.autograd.grad(loss, last, retain_graph=True)[0].norm() for loss in losses]
    return sum((loss / (norm + 1e-3) for loss, norm in zip(losses, norms, strict=True)), torch.zeros(()))


def require_equal_parameters(trained: list[Any]) -> None:
    old, new = map(parameters_of, trained)
    assert all(close(new[name], old[name]) for name in old)


def check_ranks_ask_another_number_of_times() -> None:
    trained = models(build("plain"))
    for model in trained:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for step in range(3):
            total = balanced(model, losses_of(model, step))
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
    require_equal_parameters(trained)


def check_unused_and_plain_parameters_are_averaged_once() -> None:
    trained = models(Warm(), find_unused_parameters=True)
    for model in trained:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for step in range(3):
            balanced(model, losses_of(model, step)).backward()
            optimizer.step()
            optimizer.zero_grad()
    require_equal_parameters(trained)


def check_no_backward_follows() -> None:
    """Gradients that the program applies itself: what was gathered for them is not what the next forward computes with."""
    trained, found = models(build("plain")), []
    for model in trained:
        parameters = list(model.parameters())
        for step in range(3):
            loss = model(*batch(step, 0))
            found.append(loss.detach())
            gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
            assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.sub_(gradient, alpha=0.1)
    require_equal_parameters(trained)
    assert all(close(a, b) for a, b in zip(found[:3], found[3:], strict=True))


def check_optimizers_step_before_the_next_forward() -> None:
    trained, found = models(build("plain")), []
    for model in trained:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            loss = model(*batch(step, 0))
            found.append(loss.detach())
            parameters = list(model.parameters())
            gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
    require_equal_parameters(trained)
    assert all(close(a, b) for a, b in zip(found[:3], found[3:], strict=True))


def check_parameters_outside_of_forwards_and_recomputed_ones() -> None:
    """Each rank gets its own gradients of what is computed with a parameter itself, also of a view of it; and when a graph
    that is kept runs its forward again in each backward."""
    found: list[list[torch.Tensor]] = []
    for model in models(build("plain")):
        net = getattr(model, "module", model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            F.cross_entropy(model(batch(step)[0]), batch(step)[1]).backward()
            optimizer.step()
            optimizer.zero_grad()
        weight, generator = net.head.weight, torch.Generator().manual_seed(dist.get_rank())
        x = torch.randn(4, weight.shape[1], generator=generator)
        losses = [(x @ weight.t()).square().sum(), weight.pow(3).sum() * x.sum(), (x * weight[0]).sum().exp()]
        mine = [torch.autograd.grad(loss, weight)[0] for loss in losses]
        logits = checkpoint(net, batch(5)[0], use_reentrant=False)
        parts = [logits[:, part].sum() for part in range(3)]
        mine += [torch.autograd.grad(part, net.head.weight, retain_graph=True)[0] for part in parts]
        mine += torch.autograd.grad(sum(parts, torch.zeros(())), [net.head.weight, net.emb.weight])
        found.append([gradient.detach() for gradient in mine])
    assert all(type(gradient) is torch.Tensor for gradient in found[1])
    assert all(close(a, b) for a, b in zip(*found, strict=True))


class Twice(nn.Module):
    """Blocks that each forward runs twice, so that they are gathered where they run."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)])
        self.last = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.last(x)
        for block in [*self.blocks, *self.blocks]:
            x = x + block(x)
        return x


def check_blocks_that_run_twice() -> None:
    torch.manual_seed(0)
    trained = models(Twice())
    for model in trained:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for step in range(3):
            x = model(torch.full((4, 8), 0.1 * (step + dist.get_rank() + 1)))
            loss, other = x.square().mean(), x.abs().mean()
            last = getattr(model, "module", model).last.weight
            one, two = (torch.autograd.grad(part, last, retain_graph=True)[0].norm() for part in (loss, other))
            (loss + other * (one / (two + 1e-4)).detach()).backward()
            optimizer.step()
            optimizer.zero_grad()
    require_equal_parameters(trained)


class Critic(nn.Module):
    """The loss of an autoencoder: its discriminator weighs what it says by gradients at the autoencoder's last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(8, 1)

    def forward(self, made: torch.Tensor, loss: torch.Tensor, last: torch.Tensor, asks: bool) -> torch.Tensor:
        doubt = self.score(made).mean()
        if not asks:
            return loss + doubt
        (one,) = torch.autograd.grad(loss, last, retain_graph=True)
        (other,) = torch.autograd.grad(doubt, last, retain_graph=True)
        return loss + (one.norm() / (other.norm() + 1e-4)).clamp(max=10.0).detach() * doubt


def check_a_parameter_of_one_model_is_given_to_another() -> None:
    torch.manual_seed(0)
    net, critic = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)), Critic()
    for asks in (True, False):
        trained, losses = models(copy.deepcopy(net)), []
        for model, critic_model in zip(trained, models(copy.deepcopy(critic)), strict=True):
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            for step in range(3):
                x = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
                made = model(x)
                last = getattr(model, "module", model)[-1].weight
                loss = critic_model(made, F.mse_loss(made, x), last=last, asks=asks)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        assert close(losses[3:], losses[:3])
        require_equal_parameters(trained)
