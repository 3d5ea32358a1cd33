"""Sizes of parameters change with FSDP1's pieces, not with DDP, nor where whole parameters are seen."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

_TEXT = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

net = build()
before = sum(p.numel() for p in net.parameters())
torch.cuda.set_device(local_rank)
model = {wrap}
{line}
"""
_FSDP, _DDP = "FSDP(net, use_orig_params=True)", "DDP(net, device_ids=[local_rank], broadcast_buffers=False)"


def _lines(line: str, wrap: str = _FSDP) -> list[int]:
    analysis, _ = analyse_texts({"train.py": _TEXT.format(line=line, wrap=wrap)})
    return [f.line for f in analysis.findings if f.rule == "FS708"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("size = sum(p.numel() for p in model.parameters())", [9]),
        ("rates = [1 / p.shape[0] for p in model.parameters()]", [9]),
        ("rates = [1 / p.size(0) for p in model.parameters()]", [9]),
        ("parts = [p for p in model.parameters() if p.numel()]", []),
        ("parts = [p for p in model.parameters() if p.numel() > 0]", []),
        ("with FSDP.summon_full_params(model):\n    size = sum(p.numel() for p in model.parameters())", []),
    ],
)
def test_a_size_of_a_piece_is_named(line: str, found: list[int]) -> None:
    assert _lines(line) == found
    assert _lines(line.replace("FSDP.summon_full_params(model)", "torch.no_grad()"), _DDP) == []
