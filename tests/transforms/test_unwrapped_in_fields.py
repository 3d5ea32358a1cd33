"""A model out of its wrapper that goes through a field of an object: its keys have no prefix, as they had none before."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = (
    HEAD
    + """from typing import Any, NamedTuple
import dataclasses
from torch import distributed as dist


{cls}


def inside(model):
    return model.module if isinstance(model, DDP) else model


def save(setup):
    torch.save(setup.model.state_dict(), setup.path)


def main(net, path):
    model = DDP(net) if dist.is_initialized() else net
    save({made})
"""
)
DATACLASS = "@dataclasses.dataclass\nclass Setup:\n    path: str\n    model: Any\n"
TUPLE = "class Setup(NamedTuple):\n    path: str\n    model: Any\n"


@pytest.mark.parametrize("cls", [DATACLASS, TUPLE])
@pytest.mark.parametrize(
    ("made", "is_inside"),
    [
        ("Setup(path, inside(model))", True),
        ("Setup(path=path, model=inside(model))", True),
        ("Setup(path, model=model)", False),
    ],
)
def test_the_keys_are_those_of_what_was_put_in(cls: str, made: str, is_inside: bool) -> None:
    text = migrated(train=PROGRAM.format(cls=cls, made=made))["train"]
    assert ("model_state(" not in text) == is_inside
