"""Optimizers whose first step would raise on sharded parameters hold their model; those that come out otherwise are named."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

_TEXT = """\
import torch
import transformers
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

torch.cuda.set_device(local_rank)
model = {wrap}
optimizer = {optimizer}
"""


def _levels(wrap: str, optimizer: str) -> list[str]:
    analysis, _ = analyse_texts({"train.py": _TEXT.format(wrap=wrap, optimizer=optimizer)})
    return [f.level.value for f in analysis.findings if f.rule == "FS504"]


@pytest.mark.parametrize("wrap", ["FSDP(build())", "DDP(build(), device_ids=[local_rank])"])
@pytest.mark.parametrize(
    ("optimizer", "levels"),
    [
        ("torch.optim.LBFGS(model.parameters())", ["manual"]),
        ("torch.optim.Adafactor(model.parameters())", ["manual"]),
        ("transformers.Adafactor(model.parameters())", ["manual"]),
        ("torch.optim.Rprop(model.parameters())", ["manual"]),
        ("torch.optim.Adagrad(model.parameters(), fused=True)", ["manual"]),
        ("torch.optim.Adagrad(model.parameters())", []),
        ("torch.optim.Adagrad(model.parameters(), fused=False)", []),
        ("torch.optim.AdamW(model.parameters(), fused=True)", []),
        ("torch.optim.Muon(model.parameters())", ["review"]),
    ],
)
def test_optimizers_of_torch(wrap: str, optimizer: str, levels: list[str]) -> None:
    assert _levels(wrap, optimizer) == levels
