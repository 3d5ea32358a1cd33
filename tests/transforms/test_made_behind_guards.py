"""What is made where it is read, behind a guard, is of the ranks that come there; and names that are good at the guard."""

from __future__ import annotations

from migrated_texts import findings, migrated

SEQUENCE = """import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = wrap(nn.Linear(2, 2))

    def forward(self, x):
        return self.layer(x)


def main(path):
    if dist.get_rank() == 0 and not os.path.exists(path):
        torch.manual_seed(5)
        torch.save(Net().state_dict(), path)
    with enable_wrap(wrapper_cls=FSDP):
        model = FSDP(Net())
    return model


main("x.pt")
"""


def test_a_model_that_is_made_behind_a_guard_is_not_made_in_front_of_it() -> None:
    """There it would be made by all ranks, with other random numbers."""
    text = migrated(train=SEQUENCE)["train"]
    assert "        torch.save(state_of(Net()), path)\n" in text or "        torch.save(Net().state_dict(), path)\n" in text
    assert "_state_dict = " not in text and "whole_on_each_rank" not in text


NORMS = """import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def count(self):
        return sum(p.numel() for p in self.parameters())

    def forward(self, x):
        return self.layer(x)


model = DDP(Net())
raw = model.module
if dist.get_rank() == 0:
    print(sum(p.norm().item() for p in raw.parameters()), raw.count())
"""


def test_a_model_is_named_as_the_code_around_the_guard_does() -> None:
    """Not as one of the functions of the file."""
    guard = next(line for line in migrated(train=NORMS)["train"].splitlines() if "whole_on_each_rank(" in line and "with" in line)
    assert "raw" in guard and "self" not in guard


WINDOW = """from contextlib import ExitStack

from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, optimizer, batches):
    model = DDP(net)
    for i, batch in enumerate(batches):
        last = i % 4 == 3
        with ExitStack() as stack:
            if not last:
                stack.enter_context(model.no_sync())
            model(batch).sum().backward()
        if not last:
            continue
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_window_that_is_not_open_at_the_step_reads_no_rank_s_own_gradients() -> None:
    assert not [found for found in findings(train=WINDOW) if found.level.value == "manual"]


AVERAGE = """from torch.nn.parallel import DistributedDataParallel as DDP


class Average:
    def __init__(self, model, decay):
        self.model, self.decay = model, decay
        self.shadow = {name: p.data.clone() for name, p in model.named_parameters()}

    def update(self):
        for name, p in self.model.named_parameters():
            self.shadow[name] = (1 - self.decay) * p.data + self.decay * self.shadow[name]


def unwrap(model):
    return model.module if hasattr(model, "module") else model


def train(net):
    model = DDP(net)
    return Average(unwrap(model), 0.9)
"""


def test_an_attribute_that_is_given_what_was_unwrapped_has_its_names() -> None:
    assert "named_parameters(self.model)" not in migrated(train=AVERAGE)["train"]
    wrapped = migrated(train=AVERAGE.replace("Average(unwrap(model)", "Average(model"))["train"]
    assert "named_parameters(self.model)" in wrapped and "in named_parameters(model)}" in wrapped
