"""Loops that ranks leave by what each has computed, with calls of a model that learns: they are told of."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings

PROGRAM = (
    HEAD
    + """import torch.distributed as dist


class Agent:
    def __init__(self, net, options):
        self.net = DDP(net, **options)

    def rollout(self, game):
        total = 0
        for _ in range(10):
            {call}
            total = total + game.step(found)
            {behind}
            if game.ended.{ends}:
                break
        return total

    def train(self, games):
        for game in games:
            self.rollout(game).backward()


Agent(nn.Linear(2, 2), {{}}).train([])
"""
)
CALL = "found = self.net(game.state)"


@pytest.mark.parametrize(
    ("call", "behind", "ends", "is_told"),
    [
        (CALL, "pass", "all()", True),
        (CALL, "pass", "any()", True),
        (CALL, "pass", "steps > 3", False),
        (CALL, "found.sum().backward()", "all()", False),
        (CALL, "dist.all_reduce(game.ended)", "all()", False),
        (f"with torch.no_grad():\n                {CALL}", "pass", "all()", False),
        ("found = game.state", "pass", "all()", False),
    ],
)
def test_ranks_may_leave_at_different_times(call: str, behind: str, ends: str, is_told: bool) -> None:
    found = findings(train=PROGRAM.format(call=call, behind=behind, ends=ends))
    assert any(finding.rule == "FS719" for finding in found) == is_told
