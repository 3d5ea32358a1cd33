"""Methods that a model defines in place of nn.Module's, and attributes that it reads: a wrapper kept both from its callers."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

_MODEL = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)
        self.scale = 1.0

    def {method}(self, *arguments, **options):
        return self.own(*arguments, **options)

    def forward(self, x):
        return self.layer(x) * self.scale


model = {wrap}
{line}
"""


def _found(method: str, line: str, wrap: str = "FSDP(Net())") -> list[tuple[str, str]]:
    analysis, _ = analyse_texts({"train.py": _MODEL.format(method=method, line=line, wrap=wrap)})
    return [(f.rule, f.level.value) for f in analysis.findings if f.rule in ("FS619", "FS620")]


@pytest.mark.parametrize(
    ("method", "line"),
    [
        ("eval", "model.eval()"),
        ("parameters", "model.clip_grad_norm_(1.0)"),
        ("named_parameters", "names = [n for n, _ in model.named_parameters()]"),
        ("load_state_dict", "model.load_state_dict(torch.load('weights.pt'))"),
        ("zero_grad", "model.zero_grad()"),
    ],
)
def test_a_call_that_came_to_the_wrapper_alone_is_named(method: str, line: str) -> None:
    assert _found(method, line) == [("FS619", "review")]


@pytest.mark.parametrize(
    ("method", "line"),
    [("train", "model.train()"), ("eval", "model.module.eval()"), ("eval", "model.train()"), ("state_dict", "model.eval()")],
)
def test_what_came_to_the_model_before_is_not(method: str, line: str) -> None:
    assert _found(method, line) == []


def test_a_model_that_hides_parameters_from_the_broadcast_is_held() -> None:
    assert _found("parameters", "model(batch())", "DDP(Net())") == [("FS619", "manual")]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("model.scale = 0.5", True),
        ("setattr(model, 'scale', 0.5)", True),
        ("for name, value in settings(): setattr(model, name, value)", True),
        ("setattr(model, 'note', 'second run')", False),
        ("setattr(model.module, 'scale', 0.5)", False),
        ("model.module.scale = 0.5", False),
        ("model.note = 'second run'", False),
        ("print(model.scale)", False),
    ],
)
def test_an_attribute_set_on_the_wrapper_is_named_where_the_model_reads_it(line: str, named: bool) -> None:
    assert _found("train", line) == ([("FS620", "review")] if named else [])
