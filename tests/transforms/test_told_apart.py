"""Answers that tell models of one wrapper from those of the other, where both become FSDPModule."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


class State:
    def __init__(self, model, large):
        self.model = FSDP(model) if large else DDP(model)

{answer}
    def clip(self):
        if self.is_sharded():
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        else:
            torch.nn.utils.clip_grad_value_(self.model.parameters(), 1.0)


state = State(torch.nn.Linear(4, 4), large=True)
state.clip()
"""
ANSWERS = [
    "    def is_sharded(self):\n        return isinstance(self.model, FSDP)\n",
    "    def is_sharded(self):\n        return not isinstance(self.model, DDP)\n",
    "    def is_sharded(self):\n        if isinstance(self.model, FSDP):\n            return True\n        return False\n",
    "    def is_sharded(self):\n        answer = isinstance(self.model, FSDP)\n        return answer\n",
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_ddp_stays_where_an_answer_tells_its_models_from_those_of_fsdp1(answer: str) -> None:
    analysis, results = analyse_texts({"train.py": PROGRAM.format(answer=answer)})
    text = results["train.py"]
    assert "self.model = DDP(model)" in text and "fully_shard(model)" in text
    asked = answer.replace("FSDP", "FSDPModule")
    assert asked in text
    [kept] = [finding for finding in analysis.findings if "stays under DDP" in finding.message]
    assert kept.level is Level.MANUAL and "train.py:" in kept.message and "note" in kept.advice
    _, again = analyse_texts({"train.py": text})
    assert again["train.py"] == text


@pytest.mark.parametrize("answer", ANSWERS)
def test_models_of_one_kind_are_not_told_apart(answer: str) -> None:
    text = PROGRAM.format(answer=answer).replace("FSDP(model) if large else DDP(model)", "FSDP(model)")
    _, results = analyse_texts({"train.py": text})
    assert "fully_shard" in results["train.py"]


def test_an_answer_about_both_wrappers_holds_nothing() -> None:
    answer = "    def is_sharded(self):\n        return isinstance(self.model, (FSDP, DDP))\n"
    _, results = analyse_texts({"train.py": PROGRAM.format(answer=answer)})
    assert "return isinstance(self.model, FSDPModule)" in results["train.py"]


REDUCING = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def total(model, optimizer):
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).square().sum()
    if {test}:
        dist.all_reduce(norm)
    return norm.sqrt()


def collect(model):
    return {{"sharded": isinstance(model, FSDP)}}
"""


def test_a_branch_that_combines_ranks_by_hand_is_for_review() -> None:
    analysis, _ = analyse_texts({"train.py": REDUCING.format(test="isinstance(model, FSDP)")})
    first, second = [finding for finding in analysis.findings if finding.rule == "FS603"]
    assert first.level is Level.REVIEW and "by hand" in first.message
    assert second.level is Level.REVIEW and "handed on" in second.message
