"""torch.amp.GradScaler refuses float16 parameters: said wherever nothing rules them out."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

_TRAIN = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


class Net(nn.Module):
    def forward(self, x):
        return x


def train(make, args):
    model = MODEL
    model = FSDP(model, mixed_precision=MixedPrecision(param_dtype=torch.float16))
    scaler = ShardedGradScaler()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(torch.ones(1)).sum()
    scaler.scale(loss).backward()
"""


def _scaler(model: str) -> tuple[Level, str]:
    analysis, results = analyse_texts({"train.py": _TRAIN.replace("MODEL", model)})
    assert "scaler = torch.amp.GradScaler()" in results["train.py"]
    finding = next(f for f in analysis.findings if f.rule == "FS305" and "becomes" in f.message)
    return finding.level, finding.message


@pytest.mark.parametrize("model", ["Net()", "nn.Sequential(nn.Linear(4, 4), Net())"])
def test_parameters_in_float32_are_scaled_as_before(model: str) -> None:
    assert _scaler(model) == (Level.SAFE, "ShardedGradScaler becomes torch.amp.GradScaler")


@pytest.mark.parametrize(
    "model",
    ["Net().half()", "Net().to(torch.float16)", 'Net().to(getattr(torch, "float16"))', "make(args)"],
)
def test_parameters_that_may_be_float16_are_named(model: str) -> None:
    level, message = _scaler(model)
    assert level is Level.REVIEW
    assert "Attempting to unscale FP16 gradients" in message


def test_model_from_outside_may_be_float16() -> None:
    text = "import transformers\n" + _TRAIN.replace("MODEL", "transformers.AutoModel.from_pretrained(args.name)")
    analysis, _ = analyse_texts({"train.py": text})
    assert next(f.level for f in analysis.findings if f.rule == "FS305" and "becomes" in f.message) is Level.REVIEW
