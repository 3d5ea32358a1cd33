"""Wrapper classes that code hands on by name: asked for, called, or both."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = (
    HEAD
    + """def unwrap(model, {parameter}):
    {test}


def build(net, options):
    model = DDP(net, **options)
    return {call}
"""
)
LOOP = "while isinstance(model, classes):\n        model = model.module\n    return model"
ASKS = "return isinstance(model, classes)"
MAKES = "return classes(model) if not isinstance(model, classes) else model"


@pytest.mark.parametrize(("parameter", "call"), [
    ("classes=(DDP,)", "unwrap(model)"), ("classes", "unwrap(model, (DDP, nn.DataParallel))"), ("classes=DDP", "unwrap(model)"),
])  # fmt: skip
def test_classes_that_are_asked_for(parameter: str, call: str) -> None:
    text = migrated(train=PROGRAM.format(parameter=parameter, call=call, test=LOOP))["train"]
    assert f"def unwrap(model, {parameter}):" in text and call in text  # no model is of these classes any more: right
    asks = migrated(train=PROGRAM.format(parameter=parameter, call=call, test=ASKS))["train"]
    assert "FSDPModule" in asks and asks.count("shard_like_ddp") == 2  # its import and the wrap


def test_a_class_that_is_called_too_shards() -> None:
    text = migrated(train=PROGRAM.format(parameter="classes=DDP", call="unwrap(net)", test=MAKES))["train"]
    assert "classes=shard_like_ddp" in text


@pytest.mark.parametrize("parameter", ["classes=DDP", "classes"])
@pytest.mark.parametrize("handed_on", [
    "functools.partial(DDP)(net)", "pick()(net)", "{'ddp': DDP}['ddp'](net)", "make(net, DDP)",
])  # fmt: skip
def test_a_class_that_others_call_shards(parameter: str, handed_on: str) -> None:
    others = """import functools


def pick():
    return DDP


def make(net, wrapper):
    return wrapper(net)


def wrap(net):
    return {handed_on}
"""
    call = "unwrap(model)" if "=" in parameter else "unwrap(model, DDP)"
    asks = PROGRAM.removeprefix(HEAD).format(parameter=parameter, call=call, test=ASKS)
    text = HEAD + others.format(handed_on=handed_on) + asks
    new = migrated(train=text)["train"]
    assert "return shard_like_ddp" in new and "FSDPModule" in new
    assert handed_on.replace("DDP", "shard_like_ddp") in new
