"""Contexts of Join that functions return: the loop inside is found where they are entered."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings, migrated
from to_fsdp2.transforms.findings import Level

_TRAINER = HEAD + """class Strategy:
    def wrap(self, net):
        return DDP(net)

    def uneven(self, module):
        return module.join()


class Trainer:
    def __init__(self, net, batches):
        self.strategy = Strategy()
        self.model = self.strategy.wrap(net)
        self.batches = batches

    def context(self):
        return {context}

    def train(self, optimizer):
        with {entered}:
            for batch in self.batches:
                optimizer.zero_grad()
                self.model(batch).sum().backward()
                optimizer.step()


Trainer(nn.Linear(2, 2), []).train(None)
"""


@pytest.mark.parametrize(("context", "entered"), [
    ("None", "self.strategy.uneven(self.model)"), ("self.strategy.uneven(self.model)", "self.context()"),
    ("self.model.join()", "self.context()"),
])  # fmt: skip
def test_the_loop_is_found_where_the_context_is_entered(context: str, entered: str) -> None:
    program = _TRAINER.format(context=context, entered=entered)
    assert "for batch in until_all_ranks_finish(self.batches, self.model):" in migrated(train=program)["train"]
    assert [f.level for f in findings(train=program) if f.rule == "FS306"] == [Level.REVIEW]


def test_what_cannot_be_named_there_is_told() -> None:
    program = _TRAINER.format(context="None", entered="self.strategy.uneven([self.model][0])")
    assert [f.level for f in findings(train=program) if f.rule == "FS306"] == [Level.MANUAL]


def test_a_context_that_is_chosen_first_joins_what_is_sharded() -> None:
    """The loop stays as it is: the program may have a way of its own for ranks to leave it together."""
    text = HEAD + (
        "from contextlib import nullcontext\n\n\n"
        "def run(net, options, loader, engine):\n    model = DDP(net, **options)\n"
        "    context = model.join if engine == 'ddp' else nullcontext\n"
        "    with context():\n        for batch in loader:\n            model(batch).sum().backward()\n"
    )
    new = migrated(train=text)["train"]
    assert "context = (lambda **options: join([model], **options)) if engine == 'ddp' else nullcontext" in new
    assert "import join, repeats_batch, shard_like_ddp, until_all_ranks_finish\n" in new, "the advice speaks of them"
    (found,) = (finding for finding in findings(train=text) if finding.rule == "FS306")
    assert found.level is Level.MANUAL


def test_the_class_itself_is_handed_on() -> None:
    text = HEAD + (
        "from torch.distributed.algorithms.join import Join\n\n\n"
        "def run(net, options, watch):\n    model = DDP(net, **options)\n    watch(Join, 'main_hook')\n    return model\n"
    )
    (found,) = (finding for finding in findings(train=text) if finding.rule == "FS306")
    assert found.level is Level.MANUAL and "shard_like_ddp" in migrated(train=text)["train"]


@pytest.mark.parametrize(("body", "level"), [
    ("{train}\n            optimizer.step()\n            seen += 1", Level.REVIEW),
    ("{train}\n            optimizer.step()", Level.REVIEW),
    ("seen += 1\n            {train}\n            optimizer.step()", Level.MANUAL),
    ("{train}\n            if seen % 4 == 0:\n                optimizer.step()\n                print(seen)", Level.MANUAL),
])  # fmt: skip
def test_what_a_loop_counts_in_repeated_batches_is_told(body: str, level: Level) -> None:
    text = HEAD + (
        "def run(net, options, loader, optimizer):\n    model, seen = DDP(net, **options), 0\n"
        f"    with model.join():\n        for batch in loader:\n            {body}\n    return seen\n"
    )
    text = text.replace("{train}", "model(batch).sum().backward()")
    (found,) = (finding for finding in findings(train=text) if finding.rule == "FS306")
    assert found.level is level
    assert ("repeats_batch" in migrated(train=text)["train"]) == (level is Level.MANUAL or "seen += 1" in body)
