"""Models of FSDP1 that are frozen while others learn through them: torch 2.13 kept their gradients, and that is told."""

from __future__ import annotations

import pytest
from migrated_texts import findings
from to_fsdp2.transforms.findings import Level

PROGRAM = """import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def switch(net, flag):
    for p in net.parameters():
        p.requires_grad = flag


def run(generator, critic, batches, options):
    {before}
    critic = FSDP(critic{orig})
    for x in batches:
        {off}
        critic(generator(x)).mean().backward()
        {on}
        critic(x).mean().backward()
"""
OFF, ON = "critic.requires_grad_(False)", "critic.requires_grad_(True)"


@pytest.mark.parametrize(
    ("before", "orig", "off", "on", "is_told"),
    [
        ("pass", "", OFF, ON, True),
        ("pass", "", "switch(critic, False)", "switch(critic, True)", True),
        ("pass", ", use_orig_params=options.orig", OFF, ON, True),
        ("pass", ", use_orig_params=True", OFF, ON, False),
        ("pass", "", OFF, "pass", False),
        (OFF, "", "pass", ON, False),
        ("pass", "", OFF, "x.requires_grad_()", False),
    ],
)
def test_gradients_that_fsdp1_kept_are_told(before: str, orig: str, off: str, on: str, is_told: bool) -> None:
    found = findings(train=PROGRAM.format(before=before, orig=orig, off=off, on=on))
    assert any(f.rule == "FS101" and f.level is Level.REVIEW and "kept gradients" in f.message for f in found) == is_told
