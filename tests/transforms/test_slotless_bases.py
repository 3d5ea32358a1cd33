"""Bases without a layout of their own, such as ABC, in front of nn.Module: fully_shard cannot change the class."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = (
    HEAD
    + """import abc
from abc import ABC
from typing import Generic, TypeVar

T = TypeVar("T")


class Base(Generic[T], nn.Module):
    pass


{cls}
    def forward(self, x):
        return x


def main(options):
    return DDP(Net(), **options)


main(dict())
"""
)


@pytest.mark.parametrize(
    ("cls", "written"),
    [
        ("class Net(ABC, nn.Module):", "class Net(nn.Module, ABC):"),
        ("class Net(abc.ABC, Base[int]):", "class Net(Base[int], abc.ABC):"),
        ("class Net(nn.Module, ABC):", "class Net(nn.Module, ABC):"),
        ("class Net(nn.Module, metaclass=abc.ABCMeta):", "class Net(nn.Module, metaclass=abc.ABCMeta):"),
        ("class Plain(ABC):", "class Plain(ABC):"),
    ],
)
def test_the_module_comes_first(cls: str, written: str) -> None:
    text = migrated(train=PROGRAM.format(cls=cls))["train"]
    assert written in text and "class Base(nn.Module, Generic[T]):" in text
