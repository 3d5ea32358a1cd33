"""Whether a model is its wrapper: fully_shard makes them one object, so that the answer changes without a word."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

HEAD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def bare(model):
    return model.module if hasattr(model, "module") else model


def make(kind):
    net = torch.nn.Linear(4, 4)
    if kind == "ddp":
        return DDP(net)
    return FSDP(net) if kind == "fsdp" else net


def train(kind):
    model = make(kind)
"""


def holders(body: str) -> list[str]:
    analysis, _ = analyse_texts({"train.py": HEAD + "".join(f"    {line}\n" for line in body.splitlines())})
    return [f.rule for f in analysis.findings if f.level is Level.MANUAL and not f.blocked_by]


@pytest.mark.parametrize(
    "body",
    [
        "return 0.1 if bare(model) is not model else 0.2",
        "return 0.1 if model is bare(model) else 0.2",
        "return 0.1 if bare(model) != model else 0.2",
        "return 0.1 if id(bare(model)) == id(model) else 0.2",
        "raw = bare(model)\nreturn 0.1 if raw is not model else 0.2",
        'raw = getattr(model, "module", model)\nreturn 0.1 if raw is model else 0.2',
    ],
)
def test_comparing_a_model_with_what_is_taken_out_of_it_holds(body: str) -> None:
    assert holders(body) == ["FS618"]


@pytest.mark.parametrize(
    "body",
    [
        "return 0.1 if model is None else 0.2",
        "return [m for m in model.modules() if m is not model]",
        "other = model\nreturn 0.1 if other is model else 0.2",
    ],
)
def test_other_comparisons_hold_nothing(body: str) -> None:
    assert "FS618" not in holders(body)
