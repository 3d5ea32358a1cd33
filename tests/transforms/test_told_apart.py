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
def test_an_answer_about_one_wrapper_holds_a_model_of_both(answer: str) -> None:
    text = PROGRAM.format(answer=answer)
    analysis, results = analyse_texts({"train.py": text})
    assert results["train.py"] == text
    asked = next(finding for finding in analysis.findings if "tells models of" in finding.message)
    assert asked.level is Level.MANUAL and "note how" in asked.advice


@pytest.mark.parametrize("answer", ANSWERS)
def test_models_of_one_kind_are_not_told_apart(answer: str) -> None:
    text = PROGRAM.format(answer=answer).replace("FSDP(model) if large else DDP(model)", "FSDP(model)")
    _, results = analyse_texts({"train.py": text})
    assert "fully_shard" in results["train.py"]


def test_an_answer_about_both_wrappers_holds_nothing() -> None:
    answer = "    def is_sharded(self):\n        return isinstance(self.model, (FSDP, DDP))\n"
    _, results = analyse_texts({"train.py": PROGRAM.format(answer=answer)})
    assert "return isinstance(self.model, FSDPModule)" in results["train.py"]
