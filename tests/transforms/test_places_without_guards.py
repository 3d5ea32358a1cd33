"""What is no guard, and what is one: tests in forwards, numbers that ranks agree about or do not."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

FORWARD = (
    HEAD
    + """class Block(nn.Module):
    def __init__(self, drop, rank=1):
        super().__init__()
        self.lin, self.drop, self.rank = nn.Linear(4, 4), drop, rank

    def forward(self, x):
        return self.run(x)

    def run(self, x):
        if {test}:
            return x + self.lin(x)
        return self.lin(x)


class Net(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.blocks = nn.ModuleList([Block(d.item()) for d in torch.linspace(0, rate, 3)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def main():
    model = DDP(Net(0.5))
    model(torch.ones(2, 4)).sum().backward()


main()
"""
)


@pytest.mark.parametrize("test", ["self.training and self.drop > 0.1", "self.rank == 1", "torch.isnan(x).any()"])
def test_inside_of_forwards_nothing_is_held(test: str) -> None:
    text = migrated(train=FORWARD.replace("{test}", test))["train"]
    assert "whole_" not in text and f"        if {test}:\n            return x + self.lin(x)\n" in text


BEST = (
    HEAD
    + """import torch.distributed as dist


def reduced(value, share):
    total = torch.tensor(value)
    {agree}
    return total.item()


def evaluate(model, config):
    with torch.no_grad():
        return reduced(model(torch.ones(2, 4)).sum().item(), config)


def gathered(config):
    dist.all_reduce(torch.ones(1))


def main(config):
    model, best = DDP(nn.Linear(4, 4)), 0.0
    for epoch in range(3):
        gathered(config)
        score = evaluate(model, config)
        is_best = score > best
        if is_best and dist.get_rank() == 0:
            torch.save(model.state_dict(), "best.pt")


main({})
"""
)


@pytest.mark.parametrize(
    ("agree", "are_alike"),
    [
        ("dist.all_reduce(total)", True),
        ("dist.broadcast(total, 0)", True),
        ("dist.reduce(total, 0)", False),
        ("torch.cuda.synchronize()", False),
    ],
)
def test_ranks_agree_about_what_one_call_has_made_the_same(agree: str, are_alike: bool) -> None:
    text = migrated(train=BEST.replace("{agree}", agree))["train"]
    assert ("if is_best else None" in text) == are_alike
    assert ("true_on_any_rank(is_best)" in text) != are_alike


NAN = (
    HEAD
    + """def main(batches):
    model = DDP(nn.Linear(4, 4))
    for x in batches:
        out = model(x)
        if {test}:
            torch.save(model.state_dict(), "nan.pt")
        out.sum().backward()


main([])
"""
)


@pytest.mark.parametrize("test", ["torch.isnan(out).any()", "not torch.isfinite(out.sum())", "torch.isinf(out).any().item()"])
def test_a_ranks_own_numbers_let_it_in_alone(test: str) -> None:
    text = migrated(train=NAN.replace("{test}", test))["train"]
    assert "with whole_when_asked(model):" in text and "ask_for_whole()" in text


UNSEEN = {
    "train": HEAD
    + """import importlib


def main(args):
    model = DDP(nn.Linear(4, 4))
    getattr(importlib.import_module(args.engine), args.function)(args, (nn.Linear(4, 4), model), [])
""",
    "engine": """import torch
import torch.distributed as dist


def learn(loss, scaler):
    scaler.scale(loss).backward()


def show(args, model, x):
    print(model.head(x))


def train(args, model, batches, scaler=None):
    teacher, model = model
    teacher.eval()
    model.train()
    for step, x in enumerate(batches):
        if dist.get_rank() == 0 and step % 100 == 0:
            show(args, model, x)
        learn(model(x).sum(), scaler)
""",
}


def test_a_model_that_nothing_shows_is_one_that_the_program_wraps() -> None:
    text = migrated(**UNSEEN)["engine"]
    assert "with whole_on_each_rank(model, needed=step % 100 == 0):" in text and "teacher.eval()" in text
