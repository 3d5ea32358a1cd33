"""Registries that keep all kinds of classes in one dictionary, by the name of the kind: each is told apart."""

from __future__ import annotations

from migrated_texts import HEAD, migrated

REGISTRY = """class Registry:
    kinds = {"logger": {}, "trainer": {}}

    @classmethod
    def find(cls, name, kind):
        found = cls.kinds[kind].get(name, None)
        if found is not None:
            return found
        raise KeyError(name)

    @classmethod
    def logger(cls, name):
        return cls.find(name, {logger})

    @classmethod
    def trainer(cls, name):
        return cls.find(name, kind="trainer")
"""
PROGRAM = HEAD + """import torch.distributed as dist
from registry import Registry


class Log:
    def __init__(self):
        self.lines = []

    def finish(self):
        return len(self.lines)


class Trainer:
    def __init__(self):
        self.model = DDP(nn.Linear(4, 4))

    def finish(self):
        return {{name: p.norm().item() for name, p in self.model.named_parameters()}}


Registry.kinds["logger"]["log"] = Log
Registry.kinds["trainer"]["plain"] = Trainer


class Run:
    def __init__(self, names):
        self.trainer = Registry.trainer(names[0])()
        self.open(names)

    def open(self, names):
        if dist.get_rank() == 0:
            self.log = Registry.logger(names[1])()
            self.log.finish()


run = Run(input().split())
run.trainer.model(torch.ones(2, 4)).sum().backward()
"""


def test_what_a_kind_gives_is_that_kind() -> None:
    text = migrated(train=PROGRAM.format(), registry=REGISTRY.replace("{logger}", '"logger"'))["train"]
    assert "DDP" not in text
    assert "            self.log = Registry.logger(names[1])()\n            self.log.finish()\n" in text
    assert "each_rank" not in text


def test_a_kind_that_nothing_shows_may_be_any() -> None:
    text = migrated(train=PROGRAM.format(), registry=REGISTRY.replace("{logger}", "input()"))["train"]
    assert "each_rank" in text
