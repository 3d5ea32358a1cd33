"""Hooks that a registry calls by name, and what reaches models through them."""

from __future__ import annotations

from migrating import analyse_texts
from to_fsdp2.transforms.findings import Finding, Level

_REGISTRY = """\
class Callbacks:
    def __init__(self):
        self.registered = {"on_start": [], "on_end": []}

    def register(self, hook, function):
        self.registered[hook].append({"function": function})

    def run(self, hook, *args, **kwargs):
        for entry in self.registered[hook]:
            entry["function"](*args, **kwargs)
"""
_LOGGERS = """\
import torch


class Loggers:
    def on_start(self, model, batch):
        self.graph = torch.jit.trace(model, batch)

    def on_end(self, seconds):
        print(seconds)
"""
_TRAIN = """\
import os

import torch
from callbacks import Callbacks
from loggers import Loggers
from torch.nn.parallel import DistributedDataParallel as DDP

RANK = int(os.environ["RANK"])


def train(batch):
    callbacks, loggers = Callbacks(), Loggers()
    for name in [name for name in dir(loggers) if not name.startswith("_")]:
        callbacks.register(name, getattr(loggers, name))
    model = DDP(torch.nn.Linear(2, 2))
    if RANK == 0:
        callbacks.run("on_start", model, batch)
"""


def _traces(train: str) -> list[Finding]:
    analysis, _ = analyse_texts({"train.py": train, "callbacks.py": _REGISTRY, "loggers.py": _LOGGERS})
    return [finding for finding in analysis.findings if finding.rule == "FS506"]


def test_models_are_followed_into_hooks_that_are_called_by_name() -> None:
    (finding,) = _traces(_TRAIN)
    assert (finding.level, finding.file, finding.line) == (Level.MANUAL, "loggers.py", 6)
    assert "only some ranks come here (`RANK == 0`, train.py:16)" in finding.message


def test_hooks_of_other_names_do_not_get_the_model() -> None:
    assert not _traces(_TRAIN.replace('"on_start"', '"on_end"'))


def test_models_that_are_traced_before_they_are_sharded_are_whole() -> None:
    head, _, rest = _TRAIN.partition("    model = DDP(torch.nn.Linear(2, 2))\n")
    assert not _traces(head + "    model = torch.nn.Linear(2, 2)\n" + rest + "    model = DDP(model)\n")
