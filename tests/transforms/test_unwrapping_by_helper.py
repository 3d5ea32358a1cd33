"""``model.module if is_wrapped(model) else model``: the helper is true of FSDP2 models as well, which have no wrapper."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

HELPERS = """\
from torch.distributed.fsdp import FSDPModule
from torch.nn import DataParallel
from torch.nn.parallel import DistributedDataParallel


class Wrapper:
    module = None


def is_wrapped(model):
    return isinstance(model, ({classes}))
"""
PROGRAM = """\
import torch
from helpers import is_wrapped
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main(net, distributed):
    model = DDP(net) if distributed else nn.DataParallel(net)
    {use}
"""
EVERY = "DataParallel, DistributedDataParallel, FSDPModule"


def migrated(use: str, classes: str = EVERY) -> str:
    _, results = analyse_texts({"helpers.py": HELPERS.format(classes=classes), "train.py": PROGRAM.format(use=use)})
    return results["train.py"]


@pytest.mark.parametrize("classes", [EVERY, "DataParallel, DistributedDataParallel"])
def test_choice_is_whole_where_the_helper_is_asked(classes: str) -> None:
    text = migrated("print(model.module if is_wrapped(model) else model)", classes)
    assert "getattr" not in text
    assert ("print(model.module if isinstance(model, nn.DataParallel) else model)" in text) == (classes == EVERY)
    assert ("print(model.module if is_wrapped(model) else model)" in text) == (classes != EVERY)
    assert ("import is_wrapped" in text) == (classes != EVERY)


STATE = "model.module.state_dict() if is_wrapped(model) else model.state_dict()"


def test_state_that_is_gathered_on_both_sides() -> None:
    parts = "class Parts(nn.Module):\n    def __init__(self):\n        self.head = DDP(nn.Linear(2, 2))"
    text = migrated(f"state = {STATE}\n    torch.save(state, 'file.pt')\n\n\n{parts}\n\n\nParts()")
    assert "model.module if isinstance(model, nn.DataParallel) else model," in text


def test_state_that_is_not_gathered_on_the_other_side() -> None:
    text = migrated(f"torch.save({STATE}, 'file.pt')")
    assert "if is_wrapped(model) else model.state_dict()" in text


@pytest.mark.parametrize(
    ("use", "classes"),
    [
        ("print(model.module if is_wrapped(model) else model)", f"{EVERY}, Wrapper"),
        ("print(model.module if is_wrapped(model) else None)", EVERY),
        ("print(model.module if is_wrapped(net) else model)", EVERY),
    ],
)
def test_other_choices_keep_their_test(use: str, classes: str) -> None:
    assert "is_wrapped(" in migrated(use, classes)
    assert "getattr(model, 'module', model)" in migrated(use, classes).replace('"', "'")
