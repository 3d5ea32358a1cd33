"""Optimizer state that is loaded while gradients are set: torch's helper raises for an optimizer without a step."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

PROGRAM = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def main(net, batches, path):
    model = DDP(net)
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in batches:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
{between}
    again.load_state_dict(torch.load(path))
"""
FRESH = "    again = torch.optim.AdamW(model.parameters())"


def named(between: str) -> bool:
    analysis, _ = analyse_texts({"train.py": PROGRAM.format(between=between)})
    finding = next(f for f in analysis.findings if f.rule == "FS405")
    assert finding.level is Level.REVIEW
    return "the gradients of line 10 may still be set here" in finding.message


def test_gradients_behind_the_last_backward_are_named() -> None:
    assert named(FRESH)


@pytest.mark.parametrize("between", [f"{FRESH}\n    again.zero_grad()", f"{FRESH}\n    again.step()"])
def test_cleared_gradients_and_optimizers_with_a_step_are_not(between: str) -> None:
    assert not named(between)
