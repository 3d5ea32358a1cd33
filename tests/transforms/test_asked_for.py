"""What a rank behind a guard alone finds out, in loops: it asks for the model, which is gathered then, not with every batch."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

_LOOP = (
    HEAD
    + """import time

import torch.distributed as dist


def main(net, options, batches, progress):
    model = DDP(net, **options)
    for batch in batches:
        model(batch).sum().backward()
        if dist.get_rank() == 0:
            spent = progress.spent()
            if spent > 60:
                print("saving")
                torch.save(model.state_dict(), "x.pt")
"""
)


def test_what_the_rank_in_a_loop_alone_finds_out_is_asked_for() -> None:
    """Else the model would be gathered with every batch."""
    new = migrated(train=_LOOP)["train"]
    assert "        with whole_when_asked(model):\n            if dist.get_rank() == 0:\n" in new
    asking = 'print("saving")\n                    ask_for_whole()\n                    torch.save(model_state(model), "x.pt")\n'
    assert asking in new


@pytest.mark.parametrize("other", [
    _LOOP.replace("if spent > 60:", "for _ in range(2):"),
    _LOOP.replace("model(batch).sum().backward()",
                  "for one in batch:\n            model(one).sum().backward()\n            progress.step()"),
    _LOOP.replace("for batch in batches:", "if batches:\n        batch = batches[0]"),
])  # fmt: skip
def test_what_comes_with_every_batch_or_seldom_is_gathered_at_once(other: str) -> None:
    new = migrated(train=other)["train"]
    assert "ask_for_whole" not in new and ("model_state_dict = model_state(model)" in new or "with whole_on_each_rank(" in new)


def test_a_loop_over_the_parts_of_a_batch_is_one_step() -> None:
    step = "for one in batch:\n            model(one).sum().backward()\n        progress.step()"
    parts = _LOOP.replace("model(batch).sum().backward()", step)
    assert "ask_for_whole()" in migrated(train=parts)["train"]


def test_many_lines_stay_where_they_are() -> None:
    lines = 'print("saving")\n                print(1)\n                print(2)'
    longer = migrated(train=_LOOP.replace('print("saving")', lines))["train"]
    assert "        held = entered(whole_when_asked(model))\n        if dist.get_rank() == 0:\n" in longer
    assert "                ask_for_whole()\n" in longer and "        held.close()\n" in longer


def test_asked_in_front_of_an_elif_and_once_in_a_block() -> None:
    several = _LOOP.replace(
        '                print("saving")\n                torch.save(model.state_dict(), "x.pt")\n',
        '                if spent > 90:\n                    print("long")\n'
        "                elif model.module(batch).sum() > spent:\n                    print(spent)\n"
        '                torch.save(model.state_dict(), "x.pt")\n',
    )
    new = migrated(train=several)["train"]
    assert new.count("ask_for_whole()") == 1
    assert "                ask_for_whole()\n                if spent > 90:\n" in new


def test_steps_that_are_made_in_functions_count_too() -> None:
    apart = _LOOP.replace("def main", "def step(model, batch):\n    model(batch).sum().backward()\n\n\ndef main")
    new = migrated(train=apart.replace("        model(batch).sum().backward()", "        step(model, batch)"))["train"]
    assert "ask_for_whole()" in new


def test_what_stands_behind_an_early_leave_is_asked_for() -> None:
    early = _LOOP.replace(
        '            if spent > 60:\n                print("saving")\n                torch.save(model.state_dict(), "x.pt")\n',
        '            if spent < 60:\n                continue\n            torch.save(model.state_dict(), "x.pt")\n',
    )
    new = migrated(train=early)["train"]
    assert '                ask_for_whole()\n                torch.save(model_state(model), "x.pt")\n' in new


_HANDED = (
    HEAD
    + """import torch.distributed as dist


class Net(nn.Linear):
    def write(self, path):
        torch.save(self.state_dict(), path)


def keep(model, step, config):
    {save}
    path = f"{{step}}.pt" if step in config.steps else None
    if path:
        save(path)


def main(config, batches):
    model = DDP(Net(2, 2))
    for step, batch in enumerate(batches):
        model(batch).sum().backward()
        if dist.get_rank() == 0:
            print(step)
            keep(model, step, config)


class Config:
    steps = [1000]
    run = main


if __name__ == "__main__":
    Config.run(Config, [1])
"""
)


@pytest.mark.parametrize(
    ("save", "is_asked"),
    [
        ("save = model.module.write", True),
        ("save = model.module.write; evaluate(model)", False),
        ("kept = model; save = model.module.write", False),
    ],
)
def test_a_model_that_is_handed_to_a_function_is_asked_for_where_that_works_on_it(save: str, is_asked: bool) -> None:
    new = migrated(train=_HANDED.format(save=save))["train"]
    assert ("with whole_when_asked(model):" in new and "        ask_for_whole()\n        save(path)\n" in new) == is_asked
    assert ("with whole_on_each_rank(model):" in new) != is_asked
    assert "forward_method" not in new
