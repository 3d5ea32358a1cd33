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


ACTING = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

net = torch.nn.Linear(4, 4)
model = DDP(net) if small else FSDP(net)
rate = 0.1
{act}
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
"""


@pytest.mark.parametrize(
    "act",
    [
        "rate *= 2 if isinstance(model, DDP) else 1",
        "if isinstance(model, DDP):\n    rate = rate * 2",
        "if not isinstance(model, FSDP):\n    rate = 0.3\nelse:\n    rate = 0.2",
        "if isinstance(model, FSDP):\n    model.clip_grad_norm_(1.0)\n    rate = 0.2",
        "if isinstance(model, FSDP):\n    model.clip_grad_norm_(limit)",
        "if isinstance(model, FSDP):\n    model.clip_grad_norm_(0.5)\nelse:\n"
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "if isinstance(model, FSDP):\n    model.clip_grad_norm_(1.0)\nelif isinstance(model, DDP):\n"
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)\nelse:\n"
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "if isinstance(model, DDP):\n    state = model.module.state_dict()\n    steps = 2\nelse:\n"
        "    state = model.state_dict()\n    steps = 3",
    ],
)
def test_ddp_stays_where_a_branch_does_something_of_its_own_for_one_wrapper(act: str) -> None:
    analysis, results = analyse_texts({"train.py": ACTING.format(act=act)})
    assert "DDP(net)" in results["train.py"] and "fully_shard(" in results["train.py"]
    assert any("stays under DDP" in finding.message for finding in analysis.findings)


@pytest.mark.parametrize(
    "act",
    [
        "raw = model.module if isinstance(model, DDP) else model",
        'if isinstance(model, DDP):\n    print("replicated")',
        "if isinstance(model, FSDP):\n    model.clip_grad_norm_(1.0)\nelse:\n"
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "if isinstance(model, FSDP):\n    model.clip_grad_norm_(1.0)\nelif isinstance(model, DDP):\n"
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\nelse:\n"
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "rate = 0.1 if isinstance(model, (DDP, FSDP)) else 0.2",
    ],
)
def test_branches_that_do_what_wrappers_need_keep_nothing(act: str) -> None:
    _, results = analyse_texts({"train.py": ACTING.format(act=act)})
    assert "DDP(net)" not in results["train.py"] and "fully_shard(" in results["train.py"]


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
