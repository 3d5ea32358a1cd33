"""A forward between backward and step leaves gathered units behind, which do not see the step."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

_HEAD = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


@torch.no_grad()
def evaluate(model, batch):
    return model(batch).sum()


def update(optimizer):
    optimizer.step()
    optimizer.zero_grad()


model = DDP(build(), broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for number, batch in enumerate(batches):
"""


@pytest.mark.parametrize(
    "body",
    [
        ["model(batch).sum().backward()", "evaluate(model, batch)", "optimizer.step()"],
        ["model(batch).sum().backward()", "if number % 5 == 0:", "    evaluate(model, batch)", "optimizer.step()"],
        ["model(batch).sum().backward()", "evaluate(model, batch)", "if number % 2:", "    optimizer.step()"],
        ["scaler.scale(model(batch).sum()).backward()", "evaluate(model, batch)", "scaler.step(optimizer)"],
        ["model(batch).sum().backward()", "evaluate(model, batch)", "update(optimizer)"],
    ],
)
def test_the_units_are_resharded(body: list[str]) -> None:
    text = _HEAD + "".join(f"    {line}\n" for line in body)
    analysis, results = analyse_texts({"train.py": text})
    assert any(finding.rule == "FS316" for finding in analysis.findings)
    assert "reshard()" in results["train.py"] or "update" in body[-1]


@pytest.mark.parametrize(
    "body",
    [
        ["model(batch).sum().backward()", "optimizer.step()", "evaluate(model, batch)"],
        ["evaluate(model, batch)", "model(batch).sum().backward()", "optimizer.step()"],
        ["model(batch).sum().backward()", "update(optimizer)"],
        ["for part in batch:", "    model(part).sum().backward()", "optimizer.step()"],
    ],
)
def test_what_runs_before_the_backward_or_behind_the_step_does_not_matter(body: list[str]) -> None:
    text = _HEAD + "".join(f"    {line}\n" for line in body)
    analysis, _ = analyse_texts({"train.py": text})
    assert not any(finding.rule == "FS316" for finding in analysis.findings)
