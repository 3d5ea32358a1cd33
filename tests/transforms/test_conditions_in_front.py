"""Conditions between a rank guard and a read of state: repeated in front of the guard, or named where they cannot be."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

PROGRAM = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def main(net, rank, epochs, nosave, evaluate):
    model = DDP(net)
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(epochs):
        if rank == 0:
            {first}
            if {test}:
                torch.save(optimizer.state_dict(), "checkpoint.pt")
"""


@pytest.mark.parametrize(
    ("first", "test"),
    [
        ("final = epoch + 1 == epochs", "not nosave or final"),
        ("final = epoch + 1 == epochs", "final"),
        ("score = evaluate()", "not nosave and score > 3"),
        ("is_best = evaluate()", "is_best"),
    ],
)
def test_conditions_that_only_some_ranks_know_are_named(first: str, test: str) -> None:
    analysis, _ = analyse_texts({"train.py": PROGRAM.format(first=first, test=test)})
    finding = next(f for f in analysis.findings if f.rule == "FS404")
    assert finding.level is Level.REVIEW
    assert f"all ranks gather also where `{test.removeprefix('not nosave and ')}` does not hold" in finding.message


def test_conditions_that_all_ranks_know_are_repeated() -> None:
    analysis, results = analyse_texts({"train.py": PROGRAM.format(first="pass", test="epoch % 2 == 0")})
    finding = next(f for f in analysis.findings if f.rule == "FS404")
    assert "gather also" not in finding.message
    assert "        if epoch % 2 == 0:\n            optimizer_state_dict = get_optimizer_state_dict(" in results["train.py"]


def test_conditions_on_the_rank_are_not_named() -> None:
    analysis, _ = analyse_texts({"train.py": PROGRAM.format(first="pass", test="rank == 0")})
    finding = next(f for f in analysis.findings if f.rule == "FS404")
    assert finding.level is Level.SAFE
