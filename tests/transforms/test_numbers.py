"""Numbers that are read off gradients, one by one or many at once: each is that of the whole tensor."""

from __future__ import annotations

import pytest
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

PROGRAM = """import math
import statistics

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, net, options):
        self.model = DDP(net, **options)

    def norms(self):
        {body}


def of_others(trainer):
    return [torch.norm(p.grad).item() for p in trainer.parameters()], torch.tensor([p.grad.norm() for p in trainer.parameters()])


def run(net, options, x):
    trainer = Trainer(net, options)
    trainer.model(x).backward()
    trainer.norms()
    of_others(x.made.model)
"""


def migrated(body: str) -> str:
    """The migrated program."""
    source = Source.decode("train.py", PROGRAM.format(body=body.replace("\n", "\n        ")).encode())
    analysis = analyse([extract(source)], lambda _: source, Options(target_torch=(2, 13)), paths=["train.py"])
    assert not analysis.errors
    return analysis.texts["train.py"]


NORMS = "[torch.norm(p.grad) for p in self.model.parameters() if p.grad is not None]"
MOST = "max(p.grad.abs().max() for p in self.model.parameters())"
FILLED = "norms = []\nfor p in self.model.parameters():\n    norms.append(p.grad.norm())\nreturn "


@pytest.mark.parametrize(("body", "after"), [
    (f"return torch.norm(torch.tensor({NORMS})).item()", f"torch.tensor(whole({NORMS}))"),
    (f"norms = {NORMS}\nreturn torch.tensor(norms), np.mean(norms)", f"norms = whole({NORMS})"),
    (FILLED + "np.linalg.norm(norms)", "np.linalg.norm(whole(norms))"),
    ("norms = {n: p.grad.norm() for n, p in self.model.named_parameters()}\nreturn np.array(list(norms.values()))",
     "np.array(whole(list(norms.values())))"),
    ("return statistics.mean(p.grad.norm() for p in self.model.parameters())", "statistics.mean(whole(p.grad.norm()) for p in"),
    ("return math.fsum([p.grad.norm() for p in self.model.parameters()])", "math.fsum(whole([p.grad.norm() for p in"),
    ("grads = [p.grad for p in self.model.parameters()]\nnumbers = np.array(grads)\ngrads[0].zero_()", "np.array(whole(grads))"),
    (f"return {MOST}.item()", f"whole({MOST}).item()"),
    ("for p in self.model.parameters():\n    np.asarray(p.detach())", "np.asarray(whole(p.detach()))"),
    ("for n, p in self.model.named_parameters():\n    self.writer.add_histogram(n, p, 0)", "add_histogram(n, whole(p), 0)"),
    (f"info = {{}}\nmost = {MOST}\ninfo['most'] = most.item()", f"most = whole({MOST})"),
    ("grads = [p.grad for p in self.model.parameters()]\nreturn torch.nn.utils.get_total_norm(grads).item()",
     "whole(torch.nn.utils.get_total_norm(grads)).item()"),
])  # fmt: skip
def test_they_are_of_the_whole_tensors(body: str, after: str) -> None:
    text = migrated(body)
    assert after in text
    assert "whole(torch.norm(p.grad)).item() for p in trainer" in text
    assert "torch.tensor(whole([p.grad.norm() for p in trainer.parameters()]))" in text


@pytest.mark.parametrize("body", [
    "return torch.tensor([p.numel() for p in self.model.parameters()])",
    "return np.array([1.0, 2.0]), torch.tensor([float(x) for x in (1, 2)])",
    f"return torch.stack({NORMS}).norm()",
])  # fmt: skip
def test_what_is_no_number_of_them_is_left(body: str) -> None:
    assert body in migrated(body).replace("\n        ", "\n")
