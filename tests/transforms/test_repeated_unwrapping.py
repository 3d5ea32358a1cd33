"""Code that takes wrappers off until none is left ends at a model that is its own module, whatever it asks for."""

from __future__ import annotations

from typing import Any

import pytest
from migrated_texts import HEAD, migrated
from torch.distributed.fsdp import FSDPModule

PROGRAM = (
    HEAD
    + """CLASSES = (DDP, nn.DataParallel)


def is_wrapped(model, classes=CLASSES):
    return isinstance(model, classes)


def inner(model):
    {body}


def build(net, options):
    model = DDP(net, **options)
    print(is_wrapped(model), is_wrapped(net, (DDP,)))
    return inner(model)
"""
)


@pytest.mark.parametrize("body", [
    "while is_wrapped(model):\n        model = model.module\n    return model",
    "while True:\n        if is_wrapped(model):\n            model = model.module\n        else:\n            return model",
    "if is_wrapped(model):\n        return inner(model.module)\n    return model",
    "return inner(model.module) if is_wrapped(model) else model",
    "if not is_wrapped(model):\n        return model\n    return inner(model.module)",
    "if is_wrapped(model):\n        return inner(model=model.module)\n    return model",
    "while True:\n        try:\n            model = model.module\n        except AttributeError:\n            return model",
    "if is_wrapped(model) or is_wrapped(model, DDP):\n        return inner(model.module)\n    else:\n        return model",
])  # fmt: skip
def test_it_ends_at_the_sharded_model(body: str) -> None:
    text = migrated(train=PROGRAM.format(body=body))["train"]
    sharded, plain = type("Sharded", (FSDPModule,), {"__new__": object.__new__})(), object()
    inner = _function(text)
    assert inner(sharded) is sharded
    assert inner(plain) is plain


def test_once_needs_no_end() -> None:
    text = migrated(train=PROGRAM.format(body="for _ in range(3):\n        model = model.module\n    return model"))["train"]
    assert " is not model" not in text


def _function(text: str) -> Any:
    """`inner` of a migrated file, with what the helper `unwrap` does for sharded models."""
    lines = [line for line in text.splitlines() if not line.startswith(("from fsdp2_helpers", "@"))]
    names: dict[str, Any] = {"unwrap": lambda model: model, "shard_like_ddp": None}
    exec("\n".join(lines), names)
    return names["inner"]


AVERAGES = HEAD + """class Average:
    def __init__(self, model):
        self.module = model


def unwrap_model(model):
    if isinstance(model, Average):
        return unwrap_model(model.module)
    return model.module if hasattr(model, "module") else model


def build(net, options):
    model = DDP(net, **options)
    return unwrap_model(model), unwrap_model(Average(model))
"""


def test_objects_with_a_module_of_their_own_keep_it() -> None:
    text = migrated(train=AVERAGES)["train"]
    assert "return unwrap_model(model.module)" in text and 'model.module if hasattr(model, "module") else model' in text


def test_twice_in_a_row_one_of_the_two_was_the_wrappers() -> None:
    """Which one it was is not known: an average of the model may lie in the wrapper, or around it."""
    program = (
        HEAD
        + """class Average(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.module = net


def build(net, options, is_averaged):
    return DDP(Average(net) if is_averaged else net, **options)


def report(trainer, is_averaged):
    model = trainer.model.module.module if is_averaged else trainer.model.module
    print(model.weight)


class Trainer:
    def __init__(self, net, options):
        self.model = build(net, options, True)


globals()["report"](globals()["Trainer"](nn.Linear(2, 2), {}), True)
"""
    )
    text = migrated(train=program)["train"]
    assert "model = unwrap(trainer.model, 2) if is_averaged else unwrap(trainer.model)\n" in text
