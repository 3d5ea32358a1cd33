"""Registries that hold models and optimizers: state that is read from and loaded into one or the other."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

_TEXT = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(torch.nn.Linear(2, 2), broadcast_buffers=False)
optimizer = torch.optim.AdamW(model.parameters())
things = {{"model": model{unwrapped}, "optimizer": optimizer}}
{use}
"""


@pytest.mark.parametrize("unwrapped", ["", ".module"])
@pytest.mark.parametrize(
    ("rule", "use"),
    [
        ("FS402", "packed = {name: thing.state_dict() for name, thing in things.items()}"),
        ("FS402", "packed = {name: things[name].state_dict() for name in things}"),
        ("FS403", "for name, thing in things.items():\n    thing.load_state_dict(torch.load(name))"),
    ],
)
def test_what_may_be_either_holds_the_model(unwrapped: str, rule: str, use: str) -> None:
    text = _TEXT.format(unwrapped=unwrapped, use=use)
    analysis, results = analyse_texts({"train.py": text})
    assert results["train.py"] == text
    found = [finding for finding in analysis.findings if finding.rule == rule]
    assert any(f.level is Level.MANUAL and "may be a model as well as an optimizer" in f.message for f in found)


def test_a_name_that_says_optimizer_is_believed() -> None:
    use = 'optimizer = things["optimizer"]\ntorch.save(optimizer.state_dict(), "optimizer.pt")'
    analysis, results = analyse_texts({"train.py": _TEXT.format(unwrapped=".module", use=use)})
    assert "get_optimizer_state_dict(" in results["train.py"]
    assert not any("as well as" in finding.message for finding in analysis.findings)
