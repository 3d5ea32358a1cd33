"""Blocks in parts that a forward runs in a loop are no units of their own: ranks may go around another number of times."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = (
    HEAD
    + """class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.act = nn.Linear(8, 8), nn.ReLU()

    def forward(self, x):
        return self.act(self.lin(x))


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = {blocks}

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedder = Embedder()

    def forward(self, x, n=1):
        {body}
        return x


def main():
    model = DDP(Net())
    model(torch.ones(2, 8)).sum().backward()


main()
"""
)
LIST = "nn.ModuleList([Block() for _ in range(3)])"


@pytest.mark.parametrize("blocks", [LIST, "build()"])
@pytest.mark.parametrize(
    ("body", "are_units"),
    [
        ("x = self.embedder(x)", True),
        ("for _ in range(2 if n else 1):\n            x = x + 1\n        x = self.embedder(x)", True),
        ("for _ in range(n):\n            x = self.embedder(x)", False),
        ("while x.sum() < n:\n            x = self.embedder(x)", False),
        ("x = sum(self.embedder(x * i) for i in range(n))", False),
        ("for _ in range(n):\n            for block in self.embedder.blocks:\n                x = block(x)", False),
    ],
)
def test_units(blocks: str, body: str, are_units: bool) -> None:
    program = PROGRAM.replace("class Embedder", f"def build():\n    return {LIST}\n\n\nclass Embedder")
    text = migrated(train=program.format(blocks=blocks, body=body))["train"]
    assert ("shard_like_ddp(" in text) != are_units
    assert ("            fully_shard(block)\n" in text or "        fully_shard(block)\n" in text) == are_units
