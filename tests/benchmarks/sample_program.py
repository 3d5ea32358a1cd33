"""A small program that has a place for every refactoring, with stand-ins for torch that need no process group."""

TORCH = '''
class Module:
    def __init__(self):
        self.training = True

    def __call__(self, *args):
        return self.forward(*args)

    def train(self):
        self.training = True

    def eval(self):
        self.training = False
'''

FSDP = '''
import contextlib


class FullyShardedDataParallel:
    def __init__(self, module, process_group=None, sharding_strategy=None, cpu_offload=None, **options):
        self.module, self.options, self.log = module, (sharding_strategy, cpu_offload, sorted(options)), []

    def __call__(self, *args):
        return self.module(*args)

    def state_dict(self):
        return {"weight": self.module.weight, "log": self.log}

    @contextlib.contextmanager
    def no_sync(self):
        self.log.append("off")
        yield
        self.log.append("on")


class ShardingStrategy:
    FULL_SHARD, SHARD_GRAD_OP = "full", "grad op"
'''

DISTRIBUTED = '''
def get_rank():
    return 0


def is_initialized():
    return True
'''

HELPERS = '''
import math
from torch import Module


class Net(Module):
    def __init__(self, width):
        super().__init__()
        self.width = width
        self.weight = 0.5

    def forward(self, x):
        if self.training:
            x = x + math.sqrt(self.width)
        return x * self.weight


def scaled(values, factor=2):
    """Each value times a factor."""
    result = []
    for value in values:
        result.append(value * factor)
    return result


def shifted(values, by):
    result = {}
    for number, value in enumerate(values):
        if value:
            result[number] = value + by
    return result
'''

TRAIN = '''
"""Trains a small model."""

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
from helpers import Net, scaled, shifted
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from contextlib import nullcontext

STEPS = 4
printed = 0


def say(text):
    global printed
    printed += 1
    print(printed, text)


def learning_rate(step, base: float = 0.1) -> float:
    rate: float = base / (step + 1)
    if step > STEPS:
        rate = 0.0
    return rate


def is_even(number):
    """Whether nothing is left."""
    return number % 2 == 0


def describe(step, loss):
    if is_even(step):
        say(f"step {step} loss {loss:.4f}")


class Trainer:
    def __init__(self, model, args):
        self.model = model
        self.args = args
        self.history = []
        self.rank = dist.get_rank()

    def micro_batches(self, step):
        """Numbers to train on."""
        batches = [value for value in scaled(range(3), factor=step + 1) if value or step]
        return batches

    def step(self, step):
        """One step."""
        total = 0.0
        batches = self.micro_batches(step)
        for index, value in enumerate(batches):
            last = index == len(batches) - 1
            with nullcontext() if last else self.model.no_sync():
                loss = self.model(value) * learning_rate(step)
            total += loss
        self.history.append(total)
        return total

    def report(self):
        names = sorted(self.model.state_dict(), key=lambda name: name[::-1])
        if self.rank == 0:
            say(f"keys {names}")
        if self.rank == 0 and self.history:
            for name in ("first", "last"):
                say(f"{name} {self.history[0 if name == 'first' else -1]!r}")
        if self.rank == 0:
            if self.args.verbose:
                say("verbose")
        say("reported")


def save(model, path):
    raw = model.module
    with open(path, "w") as file, contextlib.suppress(ValueError):
        file.write(str(sorted(raw.__dict__.items())))


def train(width, verbose):
    rank = dist.get_rank()
    args = argparse.Namespace(verbose=verbose)
    if verbose:
        strategy = ShardingStrategy.FULL_SHARD
    else:
        strategy = ShardingStrategy.SHARD_GRAD_OP
    model = FSDP(Net(width), sharding_strategy=strategy, cpu_offload=None, use_orig_params=True)
    context = model.no_sync if verbose else nullcontext
    count = 2 if verbose else 1
    trainer = Trainer(model, args)
    with context():
        say(f"loss {model(count)}")
    for step in range(STEPS):
        loss = trainer.step(step)
        describe(step, loss)
    trainer.report()
    size = os.path.getsize(__file__)
    if rank == 0 and size > 0:
        say(shifted(trainer.history, by=1))
    if rank == 0:
        print("rank", rank)
        save(model, "model.txt")
    say(model.options)


def main():
    for width in range(4, 6):
        train(width, verbose=width > 4)


if __name__ == "__main__":
    main()
'''

TOOL = '''
import sys

from helpers import scaled

values = scaled([1, 2, 3])
total = sum(values)
if total > 3:
    print("total", total)
else:
    print("little")
print(len(sys.argv), values)
'''

FILES = {
    "torch/__init__.py": TORCH,
    "torch/distributed/__init__.py": DISTRIBUTED,
    "torch/distributed/fsdp.py": FSDP,
    "helpers.py": HELPERS,
    "train.py": TRAIN,
    "tool.py": TOOL,
}
STAND_INS = {path for path in FILES if path.startswith("torch")}
SCRIPTS = frozenset({"train.py", "tool.py"})
