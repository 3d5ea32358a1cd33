"""Optimizers that a config names, and hooks that a registry makes: their state is sharded all the same."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

_PROGRAM = """\
import importlib

import hydra
import timm.optim
import torch
import torch.distributed as dist
import torch.optim as optim
from torch.nn.parallel import DistributedDataParallel as DDP


def build(cfg, parameters):
    module, _, name = cfg.type.rpartition(".")
    return getattr(importlib.import_module(module), name)(parameters)


def create(component, args, kwargs):
    return component(*args, **kwargs)


def instantiate(cfg, *args, **kwargs):
    module, _, name = cfg.type.rpartition(".")
    return create(getattr(importlib.import_module(module), name), args, kwargs)


class Trainer:
    def __init__(self, cfg):
        self.model = DDP(instantiate(cfg.model))
        self.optimizer = {made}

    def fit(self, x):
        self.model(x).sum().backward()
        self.optimizer.step()

    def save(self, path):
        if dist.get_rank() == 0:
            torch.save(self.optimizer.state_dict(), path)
"""
_MADE = {
    "a name of torch.optim": "getattr(optim, cfg.name)(self.model.parameters(), lr=cfg.lr)",
    "an instantiated config": "hydra.utils.instantiate(cfg.optimizer, params=self.model.parameters())",
    "a function of the repository": "build(cfg, self.model.parameters())",
    "a factory of anything": "instantiate(cfg.optimizer, self.model.parameters())",
    "groups": 'vars(optim)[cfg.name]([{"params": self.model.parameters(), "lr": 0.1}])',
    "a function that gets the model": "timm.optim.create_optimizer_v2(self.model, opt=cfg.name)",
}


@pytest.mark.parametrize("name", _MADE)
def test_state_of_optimizers_that_nothing_shows_is_gathered(name: str) -> None:
    _, texts = analyse_texts({"train.py": _PROGRAM.replace("{made}", _MADE[name])})
    gathered, _, saved = texts["train.py"].partition("        if dist.get_rank() == 0:\n")
    assert "optimizer_state_dict = get_optimizer_state_dict(\n" in gathered
    assert "torch.save(optimizer_state_dict, path)" in saved


def test_what_is_made_of_parameters_and_makes_no_step_is_no_optimizer() -> None:
    made = "timm.utils.average(self.model.parameters())"
    text = _PROGRAM.replace("{made}", made).replace("        self.optimizer.step()\n", "")
    _, texts = analyse_texts({"train.py": text.replace("import timm.optim", "import timm.utils")})
    assert "get_optimizer_state_dict" not in texts["train.py"]


def test_what_a_loaded_optimizer_may_be_is_named() -> None:
    text = _PROGRAM.replace("{made}", _MADE["a name of torch.optim"]) + (
        "\n    def load(self, path):\n        self.optimizer.load_state_dict(torch.load(path))\n"
    )
    analysis, _ = analyse_texts({"train.py": text})
    (finding,) = [finding for finding in analysis.findings if finding.rule == "FS405"]
    assert finding.level is Level.REVIEW
    assert "SGD has no tensors to load" in finding.message


_HOOKS = """\
import importlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Saver:
    def after_step(self, trainer):
        if dist.get_rank() == 0:
            torch.save(trainer.model.module.state_dict(), "model.pt")


class Trainer:
    def __init__(self, cfg, net):
        self.model = DDP(net)
        self.hooks = [getattr(importlib.import_module(name), "Saver")() for name in cfg.hooks]

    def fit(self, x):
        self.model(x).sum().backward()
        for hook in self.hooks:
            {call}


Trainer(cfg, net).fit(x)
"""


@pytest.mark.parametrize("call", ["hook.after_step(self)", 'getattr(hook, "after_step")(self)'])
def test_hooks_that_a_registry_makes_get_the_model(call: str) -> None:
    text = _HOOKS.replace("{call}", call)
    _, texts = analyse_texts({"train.py": text})
    assert "get_model_state_dict(\n            trainer.model" in texts["train.py"]


def test_methods_that_do_not_get_the_trainer_are_not_taken_for_hooks() -> None:
    text = _HOOKS.replace("{call}", "hook.after_step(x)")
    _, texts = analyse_texts({"train.py": text})
    assert "trainer.model.module" in texts["train.py"]
