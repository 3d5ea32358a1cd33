"""Attributes whose names are values: methods that events are named after, models that a parameter names."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

_PROGRAM = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Save:
    def on_end(self, trainer):
        if dist.get_rank() == 0:
            torch.save(trainer.model.module.state_dict(), "final.pt")


class Trainer:
    def __init__(self, net):
        self.model = DDP(net)
        self.callbacks = [Save()]

    def call(self, event):
        for callback in self.callbacks:
            getattr(callback, NAME)(self)

    def fit(self):
        self.call(EVENT)


Trainer(build()).fit()
"""
_NAMED = {
    "a parameter": ("event", '"on_end"'),
    "a formatted name": ('f"on_{event}"', '"end"'),
    "a sum": ('"on_" + event', '"end"'),
    "a name that nothing shows": ('f"on_{event}"', "next_event()"),
}


@pytest.mark.parametrize("name", _NAMED)
def test_models_are_followed_into_methods_by_computed_names(name: str) -> None:
    written, event = _NAMED[name]
    _, texts = analyse_texts({"train.py": _PROGRAM.replace("NAME", written).replace("EVENT", event)})
    assert "get_model_state_dict(\n            trainer.model" in texts["train.py"]


def test_methods_of_other_names_are_not_called() -> None:
    _, texts = analyse_texts({"train.py": _PROGRAM.replace("NAME", 'f"before_{event}"').replace("EVENT", '"end"')})
    assert "trainer.model.module.state_dict()" in texts["train.py"]


def test_models_that_a_parameter_names_are_found() -> None:
    program = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, nets):
        self.keep("generator", nets[0])

    def keep(self, name, net):
        setattr(self, name, DDP(net))

    def save(self, path):
        torch.save(self.generator.module.state_dict(), path)


Trainer(build()).save("g.pt")
"""
    _, texts = analyse_texts({"train.py": program})
    assert "self.generator.module" not in texts["train.py"]


_HANDLERS = """\
from collections import defaultdict

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Engine:
    def __init__(self):
        self.handlers = {made}

    def add(self, event, function, *arguments):
        self.handlers{entry}.append((function, arguments))

    def fire(self, event):
        for function, arguments in self.handlers[event]:
            function(self, *arguments)


def save(engine, model, path):
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), path)


engine = Engine()
engine.add("end", save, DDP(build()), "final.pt")
engine.fire("end")
"""
_KEPT = {
    "a default": ("defaultdict(list)", "[event]"),
    "a default that a lambda makes": ("defaultdict(lambda: [])", "[event]"),
    "setdefault": ("{}", ".setdefault(event, [])"),
}


@pytest.mark.parametrize("name", _KEPT)
def test_models_are_followed_through_handlers_that_are_kept_by_event(name: str) -> None:
    made, entry = _KEPT[name]
    _, texts = analyse_texts({"train.py": _HANDLERS.replace("{made}", made).replace("{entry}", entry)})
    assert "get_model_state_dict(\n        model" in texts["train.py"]
