"""Optimizers in a list: a model by the name of a loop that is over is not that of each of them."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

_TEXT = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

nets = [DDP(build(), broadcast_buffers=False) for _ in range(2)]
optimizers = [torch.optim.AdamW(net.parameters()) for net in nets]
for batch in batches:
    for net, optimizer in zip(nets, optimizers):
        net(batch).sum().backward()
        optimizer.step()
{use}
"""


@pytest.mark.parametrize(
    ("rule", "use"),
    [
        ("FS404", "states = [optimizer.state_dict() for optimizer in optimizers]"),
        ("FS404", "states = list(map(lambda optimizer: optimizer.state_dict(), optimizers))"),
        ("FS404", "for optimizer in optimizers:\n    keep(optimizer.state_dict())"),
        ("FS405", "for optimizer, state in zip(optimizers, torch.load(path)):\n    optimizer.load_state_dict(state)"),
    ],
)
def test_another_model_beside_the_optimizer_holds(rule: str, use: str) -> None:
    text = _TEXT.format(use=use)
    analysis, results = analyse_texts({"train.py": text})
    assert results["train.py"] == text
    found = [finding for finding in analysis.findings if finding.rule == rule]
    assert any(f.level is Level.MANUAL and "earlier loop" in f.message for f in found)


def test_its_own_model_in_the_same_loop_is_taken() -> None:
    use = "for net, optimizer in zip(nets, optimizers):\n    keep(optimizer.state_dict())"
    analysis, results = analyse_texts({"train.py": _TEXT.format(use=use)})
    assert "get_optimizer_state_dict(" in results["train.py"]
    assert not any("earlier loop" in finding.message for finding in analysis.findings)
