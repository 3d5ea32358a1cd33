"""Statistics of parameters are another matter behind FSDP1, on pieces, than behind DDP or where parameters are whole."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

_TRAIN = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

from lamb import Lamb

net = build()
start = torch.stack([p.norm() for p in net.parameters()])
model = {wrap}
optimizer = Lamb(model.parameters())
for batch in batches():
    model(batch).sum().backward()
    optimizer.step()
"""
_LAMB = """\
import torch


class Lamb(torch.optim.Optimizer):
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                {line}
"""


def _lines(wrap: str, line: str) -> list[str]:
    texts = {"train.py": _TRAIN.format(wrap=wrap), "lamb.py": _LAMB.format(line=line)}
    analysis, _ = analyse_texts(texts)
    return [f"{f.file}:{f.line}" for f in analysis.findings if f.rule == "FS707"]


@pytest.mark.parametrize(
    "line",
    [
        "p.sub_(p.grad * p.norm(2))",
        "p.sub_(p.grad * torch.norm(p))",
        "p.sub_(p.grad / p.grad.std())",
        "p.sub_(p.grad * torch.linalg.vector_norm(p.data))",
    ],
)
def test_a_statistic_of_a_piece_is_named(line: str) -> None:
    assert _lines("FSDP(net, use_orig_params=True)", line) == ["lamb.py:8"]


@pytest.mark.parametrize(
    ("wrap", "line"),
    [
        ("DDP(net)", "p.sub_(p.grad * p.norm(2))"),
        ("FSDP(net, use_orig_params=True)", "p.sub_(p.grad * torch.sign(p))"),
        ("FSDP(net, use_orig_params=True)", "print(p.norm().item())"),
    ],
)
def test_other_work_is_not(wrap: str, line: str) -> None:
    assert _lines(wrap, line) == []
