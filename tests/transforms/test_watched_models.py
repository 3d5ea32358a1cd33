"""Logging that hooks into a model: nothing is held for it, and it is told of."""

from __future__ import annotations

from migrated_texts import HEAD, findings, migrated
from to_fsdp2.transforms.findings import Level

PROGRAM = HEAD + """import torch.distributed as dist
import wandb


def main(args):
    model = DDP(nn.Linear(4, 4))
    if dist.get_rank() == 0:
        wandb.watch(model, log="all")
    plain = nn.Linear(4, 4)
    wandb.watch(plain)
    model(torch.ones(2, 4)).sum().backward()


main(None)
"""


def test_hooks_of_loggers() -> None:
    assert "    if dist.get_rank() == 0:\n        wandb.watch(model" in migrated(train=PROGRAM)["train"]
    (found,) = [f for f in findings(train=PROGRAM) if "wandb.watch" in f.message]
    assert found.level == Level.MANUAL
