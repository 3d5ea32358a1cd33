"""A forward between backward and step leaves gathered units behind, which do not see the step."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

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


_FSDP1 = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(build(), use_orig_params=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in batches:
"""


def test_clipping_behind_it_finds_the_gradients() -> None:
    lines = ["model(batch).sum().backward()", "label = model(batch).argmax(-1)", "model.clip_grad_norm_(1.0)", "optimizer.step()"]
    analysis, results = analyse_texts({"train.py": _FSDP1 + "".join(f"    {line}\n" for line in lines)})
    assert any(f.rule == "FS303" and f.level is Level.REVIEW and "since the backward" in f.message for f in analysis.findings)
    resharded, _, _ = results["train.py"].partition("clip_grad_norm_(model.parameters(), 1.0)")
    assert "module.reshard()" in resharded


def test_clipping_right_behind_the_backward_stays_safe() -> None:
    lines = ["model(batch).sum().backward()", "model.clip_grad_norm_(1.0)", "optimizer.step()", "model(batch)"]
    analysis, results = analyse_texts({"train.py": _FSDP1 + "".join(f"    {line}\n" for line in lines)})
    assert {f.level for f in analysis.findings if f.rule == "FS303"} == {Level.SAFE}
    assert "reshard" not in results["train.py"]


def test_a_term_of_the_loss_that_is_summed_up_is_no_work_on_parameters() -> None:
    lines = ["loss = model(batch).sum()", "for p in model.parameters():", "    loss += p.pow(2).sum()", "loss.backward()"]
    analysis, results = analyse_texts({"train.py": _HEAD + "".join(f"    {line}\n" for line in lines)})
    assert not any(finding.rule == "FS309" for finding in analysis.findings)
    assert "reshard" not in results["train.py"]
