"""Backwards that are told whose gradients they are for, against DDP's."""

from __future__ import annotations

from typing import Any

import torch
from models import close
from shard_models import WIDTH, Residual, rank
from to_fsdp2.transforms.helpers.backward_inputs import in_graph
from to_fsdp2.transforms.helpers.ddp import shard_like_ddp
from to_fsdp2.transforms.helpers.gradients import no_gradient_sync
from to_fsdp2.transforms.helpers.whole import whole
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def network(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), Residual(), Residual(), nn.Linear(WIDTH, outputs))


def check_a_generator_learns_alone() -> None:
    """The gradients of a generator's loss stop in front of the discriminator's parameters."""
    results = []
    for kind in ("ddp", "fsdp2"):
        torch.manual_seed(0)
        generator, critic = network(WIDTH), network(1)
        wrap: Any = DistributedDataParallel if kind == "ddp" else shard_like_ddp
        make, judge = wrap(generator), wrap(critic)
        optimizers = [torch.optim.Adam(model.parameters(), 1e-2) for model in (make, judge)]
        seen: list[Any] = []
        for step in range(3):
            x = torch.full((2, WIDTH), 0.1 * (step + 1 + rank()))
            for optimizer, learner in zip(optimizers, (make, judge), strict=True):
                loss = judge(make(x)).square().mean()
                optimizer.zero_grad()
                asked = list(learner.parameters())
                loss.backward(inputs=asked if kind == "ddp" else in_graph(asked))
                grads = [p.grad for model in (make, judge) for p in model.parameters()]
                seen.append([None if grad is None else whole(grad).clone() for grad in grads])
                optimizer.step()
        results.append([seen, [whole(p.detach()).clone() for model in (make, judge) for p in model.parameters()]])
    assert close(results[0], results[1], 1e-6)


def check_a_head_without_reduction() -> None:
    results = []
    for kind in ("ddp", "fsdp2"):
        torch.manual_seed(0)
        model: Any = network(2)
        run: Any = DistributedDataParallel(model) if kind == "ddp" else shard_like_ddp(model)
        optimizer = torch.optim.SGD(run.parameters(), 0.1, momentum=0.9)
        for step in range(3):
            x = torch.full((2, WIDTH), 0.1 * (step + 1 + rank()))
            optimizer.zero_grad()
            head = list(model[3].parameters())
            with run.no_sync() if kind == "ddp" else no_gradient_sync(run):
                run(x).square().mean().backward(inputs=head if kind == "ddp" else in_graph(head))
            run(x).abs().mean().backward()
            optimizer.step()
        results.append([whole(p.detach()).clone() for p in run.parameters()])
    assert close(results[0], results[1], 1e-6)
