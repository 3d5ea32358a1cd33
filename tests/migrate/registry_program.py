"""A program whose models come out of registries: the analysis cannot follow them. `ENGINE` has places for comments."""

from __future__ import annotations

MAIN = """\
import importlib

from torch.nn.parallel import DistributedDataParallel as DDP

from engine import Trainer, train

if __name__ == "__main__":
    build = importlib.import_module("models." + name).build
    model = DDP(build())
    train(registry["x"](model), loader)
    Trainer(registry["y"]).fit(x)
"""
ENGINE = """\
import contextlib


def train(model, loader):{argument}
    for i, x in enumerate(loader):
        with model.no_sync() if i % 2 else contextlib.nullcontext():
            model(x).sum().backward()
    return model.module


class Trainer:
    def __init__(self, build):
        self.net = build(){attribute}

    def fit(self, x):
        return self.net.module
"""
