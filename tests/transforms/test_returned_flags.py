"""Flags of the rank that come out of a function in a tuple, and objects that only some ranks have because of them."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = (
    HEAD
    + """import torch.distributed as dist


def setup(options):
    if options.local_rank != -1:
        is_first = {flag}
    else:
        is_first = True
    return is_first, 1


class Saver:
    def save(self, model):
        torch.save({{k: v.cpu() for k, v in model.state_dict().items()}}, "a.pt")


class NoOp:
    def save(self, model):
        pass


def main(options, net, loader):
    first, count = setup(options)
    model = DDP(net, **options.ddp)
    saver = Saver() if first else NoOp()
    for x in loader:
        model(x).sum().backward()
    saver.save(model)


main(torch.load("options"), nn.Linear(2, 2), [])
"""
)


@pytest.mark.parametrize(("flag", "is_held"), [("dist.get_rank() == 0", True), ("dist.is_initialized()", False)])
def test_what_some_ranks_have_is_called_with_the_model_whole(flag: str, is_held: bool) -> None:
    text = migrated(train=PROGRAM.format(flag=flag))["train"]
    assert ("whole_on_each_rank(" in text.partition("def main")[2]) == is_held
