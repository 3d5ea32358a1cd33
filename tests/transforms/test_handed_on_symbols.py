"""Wrappers that a module of the repository hands on are found by any spelling."""

from __future__ import annotations

import pytest
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

COMMON = (
    "from torch.distributed.fsdp import FullyShardedDataParallel as F\n"
    "from torch.nn.parallel import DistributedDataParallel as D\n"
)
TRAIN = """
import torch
{}


class Net(torch.nn.Module):
    pass


def main():
    model = {}(Net())
    torch.save(model.module.state_dict(), "model.pt")


main()
"""
WAYS = [
    ("import common", "common.D"),
    ("import common as c", "c.D"),
    ("import common as c", "c.F"),
    ("from common import D", "D"),
    ("from common import F as G", "G"),
    ("from common import *", "D"),
]


@pytest.mark.parametrize(("line", "name"), WAYS, ids=[f"{line}: {name}" for line, name in WAYS])
def test_a_wrapper_from_a_module_of_the_repository(line: str, name: str) -> None:
    texts = {"common.py": COMMON, "train.py": TRAIN.format(line, name)}
    sources = {path: Source.decode(path, text.encode()) for path, text in texts.items()}
    analysis = analyse([extract(source) for source in sources.values()], sources.__getitem__, Options(), paths=list(texts))
    new = analysis.texts["train.py"]
    assert f"{name}(Net())" not in new
    assert ".module" not in new
