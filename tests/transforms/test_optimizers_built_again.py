"""Phases with optimizers and frozen layers of their own: behind an evaluation the model shows whole parameters."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

_TEXT = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(build(), broadcast_buffers=False)
for phase in range(2):
    {build}
    for batch in batches:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    {end}
"""
_EVALUATED = "with torch.no_grad():\n        print(model(held_out).sum())"


def test_the_units_are_resharded_before() -> None:
    build = "optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)"
    analysis, results = analyse_texts({"train.py": _TEXT.format(build=build, end=_EVALUATED)})
    assert {f.level for f in analysis.findings if f.rule == "FS503"} == {Level.REVIEW}
    assert "module.reshard()\n    optimizer = torch.optim.SGD(" in results["train.py"]


def test_parameters_that_are_asked_for_before_the_call_hold() -> None:
    build = "chosen = list(model.parameters())\n    optimizer = torch.optim.SGD(chosen, lr=0.1)"
    text = _TEXT.format(build=build, end=_EVALUATED)
    analysis, results = analyse_texts({"train.py": text})
    assert results["train.py"] == text
    assert {f.level for f in analysis.findings if f.rule == "FS503"} == {Level.MANUAL}


@pytest.mark.parametrize("end", ["print(phase)", "model(batch).sum().backward()"])
def test_without_a_forward_last_nothing_is_said(end: str) -> None:
    build = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
    analysis, _ = analyse_texts({"train.py": _TEXT.format(build=build, end=end)})
    assert not any(finding.rule == "FS503" for finding in analysis.findings)


@pytest.mark.parametrize(
    "build",
    [
        "model.module.requires_grad_(phase > 0)",
        "model.module.body.requires_grad_(phase > 0)",
        "for p in model.parameters():\n        p.requires_grad_(phase > 0)",
        "for p in model.parameters():\n        p.requires_grad = phase > 0",
    ],
)
def test_what_is_frozen_behind_an_evaluation_is_the_shards(build: str) -> None:
    text = _TEXT.replace("for phase", "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nfor phase", 1)
    analysis, results = analyse_texts({"train.py": text.format(build=build, end=_EVALUATED)})
    assert {f.level for f in analysis.findings if f.rule == "FS309"} == {Level.REVIEW}
    resharded, _, _ = results["train.py"].partition("requires_grad")
    assert "module.reshard()" in resharded
    analysis, _ = analyse_texts({"train.py": text.format(build=build, end="print(phase)")})
    assert not any(f.rule == "FS309" for f in analysis.findings)
