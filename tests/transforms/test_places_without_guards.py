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
    assert ("        if is_best:\n            model_state_dict = " in text) == are_alike
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
    + """import engine


class Loop:
    def __init__(self, model):
        self.model = model
        self.kept = engine.Kept(self.model)
        self.ddp = DDP(self.model)

    def save(self):
        torch.save(self.kept.state(), "a.pt")
""",
    "engine": """class Kept:
    def __init__(self, model):
        self.model, self.parameters = model, list(model.parameters())

    def state(self):
        state = self.model.state_dict()
        for i, (name, _) in enumerate(self.model.named_parameters()):
            state[name] = self.parameters[i]
        return state
""",
}


def test_what_is_handed_to_a_wrap_out_of_sight_is_the_same_model_in_front_of_it() -> None:
    assert "            state[name] = state_entry(self.parameters[i])\n" in migrated(**UNSEEN)["engine"]
