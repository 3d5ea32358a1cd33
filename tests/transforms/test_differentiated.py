"""What ``torch.autograd.grad`` is asked by: sharded parameters are in no graph, so that the gradient is of what was gathered."""

from __future__ import annotations

import pytest
from migrated_texts import helpers

PROGRAM = """import torch
from torch import autograd
from torch.nn.parallel import DistributedDataParallel as DDP


def weight_of(loss, other, {parameter}):
    first = torch.autograd.grad(loss, {inputs}, retain_graph=True)[0]
    return torch.norm(first)


def train(build, batches):
    model = DDP(build())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x in batches:
        loss = model(x).sum()
        (loss * weight_of(loss, x, {given})).backward()
        optimizer.step()


def main(build, batches):
    train(build, batches)
"""


@pytest.mark.parametrize(
    "parameter, inputs, given",
    [
        ("last", "last", "model.module.get_last_layer()"),
        ("last", "[last]", "model.module.get_last_layer()"),
        ("last_layer", "last_layer", "x"),
        ("model", "model.module.head.weight", "model"),
    ],
)
def test_gradients_by_what_may_be_a_parameter_know_what_was_gathered(parameter: str, inputs: str, given: str) -> None:
    assert "def compute_as_whole(" in helpers(train=PROGRAM.format(parameter=parameter, inputs=inputs, given=given))


@pytest.mark.parametrize("given", ["x", "x.requires_grad_()", "x.detach()", "torch.lerp(x, x, 0.5)"])
def test_gradients_by_other_tensors_need_nothing(given: str) -> None:
    assert "def compute_as_whole(" not in helpers(train=PROGRAM.format(parameter="inner", inputs="inner", given=given))
