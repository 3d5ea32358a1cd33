"""What a call behind a guard leaves at None is nothing that it works on: what it does work on is named."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

SAVE = """\
import torch


def save(path, model, optimizer=None, average=None, *, sampler=None):
    state = {"model": model.state_dict()}
    if optimizer is not None:
        state["optimizer"] = optimizer.state_dict()
    if average is not None:
        state["average"] = average.to(torch.float32).state_dict()
    if sampler is not None:
        state["sampler"] = sampler.state_dict()
    torch.save(state, path)
"""
TRAIN = """\
from saving import save


def finish(model, optimizer, rank, more):
    if rank != 0:
        return
    save("model.pt", model=model, optimizer=optimizer{given})
    print(model)


def main():
    torch.distributed.init_process_group("gloo")
    model = DDP(nn.Linear(4, 4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    finish(model, optimizer, torch.distributed.get_rank(), torch.load("more.pt"))


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(("given", "is_named"), [("", True), (", **more", False)])
def test_an_argument_that_is_left_out(given: str, is_named: bool) -> None:
    text = migrated(saving=SAVE, train=HEAD + TRAIN.format(given=given))["train"]
    assert ("whole_on_each_rank(model, optimizer)" in text) == is_named
