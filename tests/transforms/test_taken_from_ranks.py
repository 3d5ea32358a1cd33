"""Paths and flags that some ranks set to nothing: a test of one is a test of the rank."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

TAKEN = HEAD + """import torch.distributed as dist


class Trainer:
    def __init__(self, net, config):
        self.config = config
        self.model = DDP(net)
        if {test}:
            self.config.folder = None

    def fit(self, batches):
        for step, batch in enumerate(batches):
            self.model(batch).sum().backward()
            if self.config.folder is not None and step % 10 == 0:
                print(self.model.module(batch))
"""


@pytest.mark.parametrize(("test", "is_guard"), [("dist.get_rank() != 0", True), ("config.quiet", False)])
def test_what_some_ranks_take_away_is_a_test_of_the_rank(test: str, is_guard: bool) -> None:
    text = migrated(train=TAKEN.format(test=test))["train"]
    assert ("with whole_on_each_rank(self.model" in text or "entered(whole_on_each_rank(self.model" in text) == is_guard
