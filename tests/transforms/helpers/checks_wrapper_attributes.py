"""Attributes that a wrapper kept to itself, against DDP's."""

from __future__ import annotations

import copy
from typing import Any

import torch
from models import close
from to_fsdp2.transforms.helpers.copies import copy_as_plain
from to_fsdp2.transforms.helpers.ddp import shard_like_ddp
from to_fsdp2.transforms.helpers.wrapper_attributes import on_wrapper
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Chooses(nn.Linear):
    loss = "l2"

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        out = super().forward(input)
        return out.abs() if self.loss == "l1" else out.square()


def check_the_model_goes_on_with_its_own() -> None:
    found = []
    for wrap in (DistributedDataParallel, shard_like_ddp):
        torch.manual_seed(0)
        model: Any = wrap(Chooses(4, 4))
        on_wrapper(model).loss = "l1"
        found.append(model(torch.full((2, 4), 0.3)).detach())
    assert close(found[0], found[1])
    assert on_wrapper(model).loss == "l1"
    copy_as_plain(model)
    assert "_of_wrapper" not in vars(copy.deepcopy(model))


def check_a_plain_model_sees_it() -> None:
    model = Chooses(4, 4)
    on_wrapper(model).loss = "l1"
    assert model.loss == "l1"
