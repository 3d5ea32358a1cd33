"""What live_states.py must do on two ranks: averages over lists of tensors that were taken once. Run by test_live_states.py."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from models import close
from to_fsdp2.transforms.helpers.ddp import shard_like_ddp
from to_fsdp2.transforms.helpers.live_states import live_state
from to_fsdp2.transforms.helpers.state import state_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def averaged(kind: str) -> list[Any]:
    """Averages of two models, the weights of one after a load in between, and what the list holds at the end."""
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)) for _ in range(2)]
    nets[0][2].weight = nn.Parameter(torch.ones(3, 4))
    averages = [copy.deepcopy(net) for net in nets]
    models: list[Any] = [DistributedDataParallel(net) if kind == "ddp" else shard_like_ddp(net) for net in nets]
    state = (lambda model: model.state_dict()) if kind == "ddp" else live_state
    weights = [list(state(model).values()) for model in models]
    shadows = [list(average.state_dict().values()) for average in averages]
    optimizers = [torch.optim.Adam(model.parameters(), 0.05) for model in models]
    torch.manual_seed(1 + dist.get_rank())
    for step in range(4):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().sum().backward()
            optimizer.step()
        if step == 1:
            first = models[0].module.state_dict() if kind == "ddp" else state_of(models[0])
            (models[1].module if kind == "ddp" else models[1]).load_state_dict(first)
        with torch.no_grad():
            for listed, shadow in zip(weights, shadows, strict=True):
                for one, other in zip(shadow, listed, strict=True):
                    one.copy_(0.9 * one + 0.1 * other) if one.is_floating_point() else one.copy_(other)
    return [[tensor.clone() for tensor in tensors if tensor.is_floating_point()] for tensors in (*shadows, *weights)]


def check_averages_are_ddps() -> None:
    ddp, ours = averaged("ddp"), averaged("fsdp2")
    for one, other in zip(ddp, ours, strict=True):
        # Statistics of batches follow the first rank at a forward only; each rank's own are in both lists.
        assert close(one, other, 1e-5)


def check_plain_models_answer_themselves() -> None:
    net = nn.Linear(2, 2)
    assert next(iter(live_state(net).values())).data_ptr() == net.weight.data_ptr()
    assert live_state(torch.optim.SGD(net.parameters(), 0.1))["param_groups"]
