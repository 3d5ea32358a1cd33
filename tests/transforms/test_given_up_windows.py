"""Gradients of micro-batches that are thrown away before they are reduced: the helpers let zero_grad reach them."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings, migrated

PROGRAM = (
    HEAD
    + """from contextlib import nullcontext


def train(net, optimizer, epochs, batches):
    model = DDP(net)
    {first}
    for epoch in range(epochs):
        {each_epoch}
        for i, batch in enumerate(batches):
            {each_batch}
            {sync}
                model(batch).sum().backward()
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    train(nn.Linear(3, 3), torch.optim.SGD([], lr=0.1), 3, [])
"""
)
CONTEXT = "with model.no_sync() if i % 4 != 3 else nullcontext():"
FLAG = "model.require_backward_grad_sync = i % 4 == 3\n            if True:"


@pytest.mark.parametrize("sync", [CONTEXT, FLAG])
@pytest.mark.parametrize(("each_epoch", "each_batch"), [
    ("optimizer.zero_grad(set_to_none=True)", "pass"),
    ("pass", "if batch.isnan().any():\n                optimizer.zero_grad()\n"),
    ("optimizer.zero_grad(); scheduler.step()", "pass"), ("pass", "optimizer.zero_grad()"),
    ("for p in model.parameters():\n            p.grad = None", "pass"),
])  # fmt: skip
def test_a_window_may_be_given_up(sync: str, each_epoch: str, each_batch: str) -> None:
    text = migrated(train=PROGRAM.format(first="pass", each_epoch=each_epoch, each_batch=each_batch, sync=sync))["train"]
    assert "no_gradient_sync(model)" in text or "set_gradient_sync(model, i % 4 == 3)" in text
    assert "model.set_requires_gradient_sync" not in text


@pytest.mark.parametrize("sync", [CONTEXT, FLAG])
@pytest.mark.parametrize("first", ["pass", "optimizer.zero_grad()"])
def test_no_window_is_given_up(sync: str, first: str) -> None:
    text = migrated(train=PROGRAM.format(first=first, each_epoch="pass", each_batch="pass", sync=sync))["train"]
    assert "model.set_requires_gradient_sync(i % 4 == 3)" in text


@pytest.mark.parametrize("sync", [CONTEXT, FLAG])
def test_gradients_that_are_thrown_away_by_hand_are_told_of(sync: str) -> None:
    by_hand = "for p in model.parameters():\n            p.grad = None"
    text = PROGRAM.format(first="pass", each_epoch=by_hand, each_batch="pass", sync=sync)
    assert [f.level.value for f in findings(train=text) if f.rule in ("FS301", "FS302")] == ["review"]
