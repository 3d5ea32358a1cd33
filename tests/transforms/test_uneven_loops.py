"""Evaluations over what is a rank's own part of a list: some ranks may have none."""

from __future__ import annotations

import re
import textwrap

import pytest
from guarded_programs import HEAD, contexts
from migrated_texts import findings, migrated

PROGRAM = """import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


{decorator}
def evaluate(model, data):
    rank, world = dist.get_rank(), dist.get_world_size()
    return [model(x) for x in {over}]


def main(data):
    net = nn.Linear(4, 4)
    model = DDP(net, static_graph=data[0])
    model(torch.ones(2, 4)).sum().backward()
    evaluate(model.module, data)


main([])
"""


@pytest.mark.parametrize(("over", "is_held"), [
    ("data[rank::world]", True), ("range(rank, len(data), world)", True), ("data", False), ("data[:3]", False),
])  # fmt: skip
def test_a_rank_s_own_part_may_be_empty(over: str, is_held: bool) -> None:
    text = migrated(train=PROGRAM.format(over=over, decorator="@torch.no_grad()"))["train"]
    assert ("with whole_on_each_rank(model):" in text) == is_held


def test_forwards_without_gradients_go_on_with_what_is_gathered() -> None:
    assert "gather_once_in_evaluation(net)" in migrated(train=PROGRAM.format(over="data", decorator="@torch.no_grad()"))["train"]
    assert "gather_once_in_evaluation" not in migrated(train=PROGRAM.format(over="data", decorator=""))["train"]


@pytest.mark.parametrize("loop", [
    "for x in data[dist.get_rank() :: dist.get_world_size()]:\n        model(x)",
    "mine = data[rank::4]\n    for i, x in enumerate(sorted(mine)):\n        model(x)",
    "data = sorted(data)\n    data = data[rank::4]\n    for x in data:\n        model(x)",
    "out = [model(data[i]) for i in range(rank, len(data), 4)]",
    "for i, x in enumerate(data):\n        if i % 4 != rank:\n            continue\n        model(x)",
    "def predict(net, x):\n        return net(x)\n    for x in data[rank * 4 : rank * 4 + 4]:\n        predict(model, x)",
    "for i in range(options.rank, len(data), options.world_size):\n        model(data[i])",
    "for i in range(dist.get_rank(), len(data), dist.get_world_size()):\n        model(data[i])",
    "first, step = get_dist_info()\n    for i in range(first, len(data), step):\n        model(data[i])",
    "for i in range(get_dist_info()[0], len(data), 4):\n        model(data[i])",
    "first = get_dist_info()[0]\n    for x in data[first::4]:\n        model(x)",
    "def predict(opt, x):\n        opt = dict(opt)\n        return model(x, **opt)\n"
    "    for i in range(rank, len(data), 4):\n        predict({}, x)",
])  # fmt: skip
def test_loops_over_a_ranks_own_part_hold_the_model(loop: str) -> None:
    program = f"def run(net, options, data, rank):\n    model = DDP(net, **options)\n    {loop}\n"
    assert contexts(program) == ["with whole_on_each_rank(model):"]


@pytest.mark.parametrize("loop", [
    "for x in data:\n        model(x)",
    "for x in data[rank::4]:\n        model(x).sum().backward()",
    "def train(opt, x):\n        step(opt, model(x))\n    for x in data[rank::4]:\n        train({}, x)",
    "first, step = get_dist_info()\n    for i in range(0, len(data), step):\n        model(data[i])",
    "for x in data[:4]:\n        model(x)",
])  # fmt: skip
def test_loops_that_all_ranks_run_alike_hold_nothing(loop: str) -> None:
    assert contexts(f"def run(net, options, data, rank):\n    model = DDP(net, **options)\n    {loop}\n") == []


@pytest.mark.parametrize(("called", "layer", "is_synced"), [
    ("model", "nn.BatchNorm1d(4)", True), ("model.module", "nn.BatchNorm1d(4)", False), ("model", "nn.LayerNorm(4)", False),
])  # fmt: skip
def test_buffers_of_the_first_rank_come_before_a_loop_of_unequal_length(called: str, layer: str, is_synced: bool) -> None:
    """As DDP's next forward sent them, where the wrapper was called."""
    text = migrated(train=f"""import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main(data):
    model = DDP(nn.Sequential(nn.Linear(4, 4), {layer}))
    model(torch.ones(2, 4)).sum().backward()
    for x in data[dist.get_rank() :: dist.get_world_size()]:
        print({called}(x))


main([])
""")["train"]
    assert ("    sync_buffers(model)\n    with whole_on_each_rank(model):\n" in text) == is_synced
    assert "with whole_on_each_rank(model):" in text


def test_buffers_of_wrappers_that_an_object_holds_come_before_such_a_loop() -> None:
    """What lies inside of a wrapper is in that; where the object may be missing, it is asked when the program runs."""
    text = migrated(train="""import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self):
        self.net = DDP(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
        self.inner = self.net.module if dist.is_initialized() else self.net

    def test(self, x):
        self.inner(x)
        return self.net(x)


def scores(trainer, data):
    for x in data[dist.get_rank() :: dist.get_world_size()]:
        if trainer is not None:
            print(trainer.test(x))


trainer = Trainer()
trainer.net(torch.ones(2, 4)).sum().backward()
scores(trainer, [])
""")["train"]
    assert "    sync_buffers(trainer)\n    with whole_on_each_rank(trainer, needed=trainer is not None):\n" in text


EPISODES = """
    def collect(model, game):
        state, ended, steps = game.reset(), False, 0
        while {test}:
            if {alone}:
                action = game.draw()
            else:
                with torch.no_grad():
                    action = model.module(state)
            {step}
            steps += 1
        return steps

    model = DDP(torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for n in range(4):
        collect(model, make_game(n))
        model(torch.ones(2, 2)).sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize("alone", ["dist.get_rank() == 1", "random.random() < 0.1", "game.numbers.rand() < 0.1",
                                   "steps == 0 or torch.rand(1) < 0.2"])  # fmt: skip
@pytest.mark.parametrize(("test", "step", "is_around"), [
    ("not ended", "state, ended = game.step(action)", True),
    ("True", "state, ended = game.step(action)\n            if ended:\n                break", True),
    ("steps < 10", "state = game.step(action)", False),
    ("not ended", "state, ended = game.step(action)\n            dist.broadcast(ended, 0)", False),
    ("not ended", "state, ended = game.train_step(action)", False),
])  # fmt: skip
def test_what_some_ranks_run_in_a_loop_of_their_own_length_is_held_around_it(
    alone: str, test: str, step: str, is_around: bool
) -> None:
    text = migrated(train=HEAD + textwrap.dedent(EPISODES.format(alone=alone, test=test, step=step)))["train"]
    lines = [line.strip() for line in text.splitlines()]
    (held,) = (place for place, line in enumerate(lines) if re.search(r"whole_(on_each_rank|when_asked)\(model", line))
    assert (held < lines.index(f"while {test}:")) == is_around


LENT = """import torch
import torch.distributed as dist
from contextlib import contextmanager
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Average:
    def __init__(self, state):
        self.state = state

    @contextmanager
    def lent(self, model):
        model.load_state_dict(self.state)
        yield


def main(data, everywhere):
    net = nn.Sequential(nn.Linear(4, 4), {layer})
    state = net.state_dict()
    model = DDP(net)
    if dist.get_rank() == 0 or everywhere:
        average = Average(state)
    model(torch.ones(2, 4)).sum().backward()
    with average.lent(net):
        print({called}(torch.ones(2, 4)))


main([], True)
"""


@pytest.mark.parametrize(("called", "layer", "is_told"), [
    ("model", "nn.BatchNorm1d(4)", True), ("net", "nn.BatchNorm1d(4)", False), ("model", "nn.LayerNorm(4)", False),
])  # fmt: skip
def test_evaluations_with_what_an_average_lends_are_told_of_their_buffers(called: str, layer: str, is_told: bool) -> None:
    found = [f for f in findings(train=LENT.format(called=called, layer=layer)) if f.rule == "FS414"]
    assert [("own buffers" in f.advice, "all have afterwards" in f.advice) for f in found] == [(is_told, True)]
