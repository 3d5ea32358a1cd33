"""Schedulers that are built behind a load of their optimizer's state: the groups need their entry before."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Finding, Level

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from schedules import build


class Warmup:
    def __init__(self, optimizer):
        self.optimizer = optimizer


class Decay(torch.optim.lr_scheduler.LRScheduler):
    pass


def linear(optimizer):
    def adjust(step):
        optimizer.param_groups[0]["lr"] = 1 / (step + 1)

    return adjust


def main(net, path, config):
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters())
    {before}
    saved = torch.load(path)
    optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, saved))
    {behind}
"""
ROOM = """\
    for group in optimizer.param_groups:
        # the scheduler is built later, and its entry is only loaded into groups that have one
        group.setdefault("initial_lr", group["lr"])
    set_optimizer_state_dict(
"""
BUILT = [
    "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)",
    "scheduler = build(config, optimizer)",
    "train(build.cosine_schedule(optimizer))",
    "scheduler = Decay(optimizer)",
]


def load_of(texts: dict[str, str]) -> tuple[Finding, str]:
    analysis, results = analyse_texts(texts)
    return next(f for f in analysis.findings if f.rule == "FS405"), results["train.py"]


@pytest.mark.parametrize("behind", BUILT)
def test_groups_get_the_entry_of_a_scheduler_that_is_built_later(behind: str) -> None:
    finding, text = load_of({"train.py": PROGRAM.format(before="", behind=behind)})
    assert finding.level is Level.REVIEW
    assert "the scheduler of line 28 is built later" in finding.message
    assert ROOM in text


@pytest.mark.parametrize("before", BUILT)
def test_scheduler_that_is_built_before_adds_it_itself(before: str) -> None:
    finding, text = load_of({"train.py": PROGRAM.format(before=before, behind="")})
    assert "initial_lr" not in finding.message + text


@pytest.mark.parametrize(
    "behind", ["", "scheduler = Warmup(optimizer)", "scheduler.step(optimizer)", "scheduler = linear(optimizer)"]
)
def test_what_adds_no_entry_needs_none(behind: str) -> None:
    finding, text = load_of({"train.py": PROGRAM.format(before="", behind=behind)})
    assert "initial_lr" not in finding.message + text


def test_scheduler_of_a_method_that_is_called_later() -> None:
    recipe = """\
import torch
import factory
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Recipe:
    def setup(self, net, state, config):
        self._model = FSDP(net)
        self._optimizer = self._setup_optimizer(config, state)
        self._scheduler = self._setup_scheduler(config)

    def _setup_optimizer(self, config, state):
        optimizer = factory.make(config, self._model.parameters())
        state = FSDP.optim_state_dict_to_load(self._model, optimizer, state)
        optimizer.load_state_dict(state)
        return optimizer

    def _setup_scheduler(self, config):
        scheduler = factory.make(config, self._optimizer, last_epoch=3)
        return scheduler


def main(net, state, config):
    Recipe().setup(net, state, config)
"""
    finding, text = load_of({"train.py": recipe})
    assert "the scheduler of line 19 is built later" in finding.message
    assert 'group.setdefault("initial_lr", group["lr"])' in text


def test_scheduler_whose_place_is_not_known_is_named() -> None:
    library = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, net):
        self.model = FSDP(net, use_orig_params=True)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def start(self):
        self.decay = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)

    def resume(self, path):
        state = FSDP.optim_state_dict_to_load(self.model, self.optimizer, torch.load(path))
        self.optimizer.load_state_dict(state)
"""
    finding, text = load_of({"train.py": library})
    assert "the scheduler of line 11 may be built after it" in finding.message
    assert "setdefault" not in text


def test_sharded_state_is_read_into_groups_that_have_the_entry() -> None:
    program = """\
import torch
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(net, weights, reader):
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters())
    state = load_sharded_optimizer_state_dict(weights, "optim", reader)
    optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, state["optim"]))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
"""
    analysis, results = analyse_texts({"train.py": program})
    finding = next(f for f in analysis.findings if f.rule == "FS412")
    assert finding.level is Level.REVIEW
    assert "the scheduler of line 11 is built later" in finding.message
    assert """\
        group.setdefault("initial_lr", group["lr"])
    state = {"optim": get_optimizer_state_dict(model, optimizer)}
""" in results["train.py"]
