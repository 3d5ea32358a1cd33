"""What ``eval`` gives is whatever its text names: a model, an optimizer, or neither."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = (
    HEAD
    + """import torch.distributed as dist


def save(model, optimizer, path):
    torch.save({{"model": model.state_dict(), "optimizer": optimizer.state_dict()}}, path)


def main(args, net, path):
    model = DDP(net)
    optimizer = {made}
    if dist.get_rank() == 0:
        save(model.module, optimizer, path)
"""
)


@pytest.mark.parametrize(
    ("made", "is_held"),
    [
        ('eval(f"torch.optim.{args.optimizer}")', True),
        ('eval(f"torch.optim.{args.optimizer}")(model.parameters(), lr=0.1)', True),
        ("None", False),
    ],
)
def test_an_optimizer_by_its_text_is_held_with_the_model(made: str, is_held: bool) -> None:
    text = migrated(train=PROGRAM.format(made=made))["train"]
    assert ("whole_on_each_rank(model, optimizer" in text) == is_held
