"""A model whose parts are wrapped holds shards, however the parts came into their wrappers."""

from __future__ import annotations

import pytest
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

PROGRAM = """
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import wrap
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(2, 2)
        self.blocks = nn.ModuleList([nn.Linear(2, 2)])

    def shard(self):
        self.encoder = FSDP(self.encoder)

    def forward(self, x):
        return self.encoder(x)


def shard_all(m):
    for name, child in m.named_children():
        if isinstance(child, nn.Linear):
            setattr(m, name, FSDP(child))
        else:
            shard_all(child)


def wrap_children(m):
    for name, child in m.named_children():
        setattr(m, name, FSDP(child))


def main():
    model = Net()
    {}
    torch.save(model.state_dict(), "model.pt")


main()
"""
WAYS = {
    "attribute": "model.encoder = FSDP(model.encoder)",
    "method": "model.shard()",
    "children": "for name, child in model.named_children():\n        setattr(model, name, FSDP(child))",
    "index": "for i, block in enumerate(model.blocks):\n        model.blocks[i] = FSDP(block)",
    "comprehension": "model.blocks = nn.ModuleList([FSDP(block) for block in model.blocks])",
    "modules": "for m in model.modules():\n        if hasattr(m, 'inner'):\n            m.inner = FSDP(m.inner)",
    "function": "shard_all(model)",
    "getattr": "setattr(model, 'encoder', DDP(getattr(model, 'encoder')))",
    "private": "model._modules['encoder'] = FSDP(model._modules['encoder'])",
    "wrap": "for name in list(model._modules):\n        model._modules[name] = wrap(model._modules[name])",
    "holder": "holder = nn.Sequential(model)\n    holder[0].encoder = FSDP(holder[0].encoder)",
    "apply": "model.apply(wrap_children)",
    "variable": "encoder, blocks = model.encoder, model.blocks\n    model.encoder = DDP(encoder)",
}


@pytest.mark.parametrize("way", WAYS)
def test_its_state_is_gathered(way: str) -> None:
    source = Source.decode("train.py", PROGRAM.format(WAYS[way]).encode())
    analysis = analyse([extract(source)], {"train.py": source}.__getitem__, Options(), paths=["train.py"])
    assert not analysis.errors
    assert "model.state_dict()" not in analysis.texts["train.py"]
