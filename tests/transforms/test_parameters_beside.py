"""Parameters of no sharded model beside those of one: norms over both raise, and so do the helpers for optimizer state."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

_TEXT = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.shift = torch.nn.Parameter(torch.zeros(2))


model = DDP(Net(), broadcast_buffers=False)
criterion = Loss()
prompt = torch.nn.Parameter(torch.zeros(2))
optimizer = torch.optim.AdamW({parameters})
{use}
"""
_OWN = ["model.parameters()", "[model.module.shift, *model.module.layer.parameters()]"]
_MIXED = ["list(model.parameters()) + [prompt]", "[*model.parameters(), *criterion.parameters()]"]


@pytest.mark.parametrize(("given", "told"), [*((text, False) for text in _OWN), *((text, True) for text in _MIXED)])
def test_clipping_both_together_is_named(given: str, told: bool) -> None:
    use = f"torch.nn.utils.clip_grad_norm_({given}, 1.0)"
    analysis, _ = analyse_texts({"train.py": _TEXT.format(parameters="model.parameters()", use=use)})
    assert any("clipped together" in finding.message for finding in analysis.findings) is told


@pytest.mark.parametrize("use", ["keep(optimizer.state_dict())", "optimizer.load_state_dict(torch.load(path))"])
def test_state_of_an_optimizer_over_both_holds(use: str) -> None:
    text = _TEXT.format(parameters='[{"params": model.parameters()}, {"params": [prompt], "lr": 0.1}]', use=use)
    analysis, results = analyse_texts({"train.py": text})
    assert results["train.py"] == text
    assert any(f.level is Level.MANUAL and "not the model's" in f.message for f in analysis.findings)


def test_state_of_an_optimizer_over_the_model_alone_is_gathered() -> None:
    text = _TEXT.format(parameters=_OWN[1], use="keep(optimizer.state_dict())")
    _, results = analyse_texts({"train.py": text})
    assert "get_optimizer_state_dict(" in results["train.py"]
