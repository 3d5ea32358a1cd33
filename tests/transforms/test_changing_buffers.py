"""Buffers that a forward writes, in whatever way: DDP sends the first rank's before each forward."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, helpers, migrated

PROGRAM = HEAD + """import torch.distributed as dist


def moved(average, new):
    average.data.mul_(0.9).add_(new)


def read(average, new):
    return average + new


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("average", torch.zeros(2))

    def smooth(self, other, new):
        other.view(-1)[0] = new.sum()

    def forward(self, x):
        x = self.layer(x)
        {use}
        return x


def main():
    model = DDP(Net())
    model(torch.ones(2)).sum().backward()
"""


@pytest.mark.parametrize(("use", "changes"), [
    ("self.average.data.mul_(0.9)", True), ("self.average.data = x.detach()", True), ("self.average += 1", True),
    ("self.average[0] = 1", True), ("self.average.view(-1)[0].add_(1)", True), ("moved(self.average, x.detach())", True),
    ("self.smooth(self.average, x)", True), ("torch.add(x, 1, out=self.average)", True), ("dist.all_reduce(self.average)", True),
    ("average = self.average\n        average.lerp_(x.detach(), 0.1)", True), ("torch._foreach_add_([self.average], 1)", True),
    ("x = x + self.average", False), ("x = read(self.average, x)", False),
    ("average = self.average\n        x = x * average", False),
    ("x = self.average.view(1, -1).expand(2, -1) * x", False), ("x.copy_(self.average)", False),
])  # fmt: skip
def test_buffers_that_a_forward_writes_are_those_of_the_first_rank(use: str, changes: bool) -> None:
    files = {"train": PROGRAM.format(use=use)}
    assert ("broadcast_buffers_before_forward(" in migrated(**files)["train"] + helpers(**files)) is changes
