"""What code outside of forwards computes with parameters and gradients: it finds them whole."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, helpers, migrated

PROGRAM = """import math
import statistics

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, net, options):
        self.model = DDP(net, **options)

    def norms(self):
        {body}


def run(net, options, x):
    trainer = Trainer(net, options)
    trainer.model(x).backward()
    trainer.norms()
"""


def program(body: str) -> str:
    return PROGRAM.format(body=body.replace("\n", "\n        "))


NORMS = "[torch.norm(p.grad) for p in self.model.parameters() if p.grad is not None]"
MOST = "max(p.grad.abs().max() for p in self.model.parameters())"
WHOLE_NORMS = "[whole(torch.norm(p.grad)) for p in self.model.parameters() if p.grad is not None]"
FILLED = "norms = []\nfor p in self.model.parameters():\n    norms.append(p.grad.norm())\nreturn "


@pytest.mark.parametrize(("body", "new"), [
    (f"return torch.norm(torch.tensor({NORMS})).item()", f"return torch.norm(torch.tensor({WHOLE_NORMS})).item()"),
    (f"norms = {NORMS}\nreturn torch.tensor(norms), np.mean(norms)",
     f"norms = {WHOLE_NORMS}\nreturn torch.tensor(norms), np.mean(norms)"),
    (FILLED + "np.linalg.norm(norms)", FILLED.replace("p.grad.norm()", "whole(p.grad.norm())") + "np.linalg.norm(norms)"),
    ("norms = {i: p.grad.norm() for i, p in enumerate(self.model.parameters())}\nreturn np.array(list(norms.values()))",
     "norms = {i: whole(p.grad.norm()) for i, p in enumerate(self.model.parameters())}\nreturn np.array(list(norms.values()))"),
    ("return statistics.mean(p.grad.norm() for p in self.model.parameters())",
     "return statistics.mean(whole(p.grad.norm()) for p in self.model.parameters())"),
    (f"return {MOST}.item()", "return max(whole(p.grad).abs().max() for p in self.model.parameters()).item()"),
    ("for p in self.model.parameters():\n    np.asarray(p.detach())",
     "for p in self.model.parameters():\n    np.asarray(whole(p.detach()))"),
    (f"return torch.stack({NORMS}).norm()", f"return torch.stack({WHOLE_NORMS}).norm()"),
    ("for p, q in zip(self.model.parameters(), self.old):\n    q.copy_(p)",
     "for p, q in zip(self.model.parameters(), self.old):\n    q.copy_(laid_out_like(p, q))"),
    ("factor = 1 / len(self.old)\nfor p in self.model.parameters():\n    p.grad.data.mul_(factor)",
     "factor = 1 / len(self.old)\nfor p in self.model.parameters():\n    p.grad.data.mul_(factor)"),
    ("for p, q in zip(self.model.parameters(), self.other.parameters()):\n    q.mul_(0.9).add_(p.data * 0.1)",
     "for p, q in zip_like(self.model.parameters(), self.other.parameters(), target=1):\n    q.mul_(0.9).add_(p.data * 0.1)"),
    ("for p in self.model.parameters():\n    p.data = p.data * 0.9",
     "for p in self.model.parameters():\n    replace_data(p, p.data * 0.9)"),
    ("total = self.model.module.head.weight.grad.norm()\ntorch.distributed.all_reduce(total)",
     "total = whole(self.model.head.weight.grad.norm())\ntorch.distributed.all_reduce(total)"),
    ("return self.optimizer.param_groups[0]['lr'] * 2", "return self.optimizer.param_groups[0]['lr'] * 2"),
])  # fmt: skip
def test_what_only_reads_or_averages_is_gathered_where_it_stands(body: str, new: str) -> None:
    text = migrated(train=program(body))["train"]
    assert new in text.replace("\n        ", "\n")
    assert "compute_as_whole" not in helpers(train=program(body)) + text


@pytest.mark.parametrize("body", [
    "grads = [p.grad for p in self.model.parameters()]\nnumbers = np.array(grads)\ngrads[0].zero_()",
    "for i, p in enumerate(self.model.parameters()):\n    self.writer.add_histogram(i, p, 0)",
    "total = 0\nfor p in self.model.parameters():\n    total += (p ** 2).sum()",
    "total = 0\nfor p in self.model.parameters():\n    total += p.grad.norm() + self.share(p.grad)",
    "for p in self.model.parameters():\n    p.data -= 0.1 * p.grad",
    "for p, q in zip(self.model.parameters(), self.other.parameters()):\n    q.data = q.data * 0.9 + p.data * 0.1",
    "for p, mask in zip(self.model.parameters(), self.masks):\n    p.grad *= mask",
    "return torch.autograd.grad(self.loss, list(self.model.parameters()))",
    "return self.model.module.head.weight @ self.queue",
    "self.model.module.head.weight.data[0] = 1",
])  # fmt: skip
def test_what_computes_with_parameters_stays_and_finds_them_whole(body: str) -> None:
    text = migrated(train=program(body))["train"]
    assert body.replace(".module.", ".") in text.replace("\n        ", "\n")
    assert "    compute_as_whole(module)\n" in helpers(train=program(body))


@pytest.mark.parametrize("body", [
    "return torch.tensor([p.numel() for p in self.model.parameters()])",
    "return np.array([1.0, 2.0]), torch.tensor([float(x) for x in (1, 2)])",
    "for p in self.model.parameters():\n    p.requires_grad = False",
    "for p in self.model.parameters():\n    print(p.shape, p.requires_grad)",
    "return torch.optim.SGD([p for p in self.model.parameters() if p.ndim > 1], lr=0.1)",
    "for p in self.model.parameters():\n    p.grad = None",
    "rates = [group['lr'] for group in self.optimizer.param_groups]\nreturn float(sum(rates) / len(rates))",
])  # fmt: skip
def test_what_only_asks_and_collects_needs_nothing(body: str) -> None:
    assert body in migrated(train=program(body))["train"].replace("\n        ", "\n")
    assert "compute_as_whole" not in helpers(train=program(body))


def test_a_parameter_that_chooses_an_item_ends_the_question() -> None:
    program = """def main(net, options, table):
    model = DDP(net, **options)
    return table[model.module.weight], table[model.module.order][0], -table[model.module.weight].sum()
"""
    assert "table[" in migrated(train=f"from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n{program}")["train"]


def test_data_that_is_assigned_crosswise() -> None:
    assert "p.data, q.data = q.data, p.data" in migrated(train=HEAD + _CROSSWISE.format(wrapper="DDP"))["train"]
    of_fsdp = "torch.distributed.fsdp import FullyShardedDataParallel as FSDP"
    head = HEAD.replace("torch.nn.parallel import DistributedDataParallel as DDP", of_fsdp)
    assert "replace_each_data([p, q], (q.data, p.data))" in migrated(train=head + _CROSSWISE.format(wrapper="FSDP"))["train"]


_CROSSWISE = """def main(options):
    one, other = {wrapper}(nn.Linear(4, 4), **options), {wrapper}(nn.Linear(4, 4), **options)
    for p, q in zip(one.parameters(), other.parameters()):
        p.data, q.data = q.data, p.data


main({{}})
"""
