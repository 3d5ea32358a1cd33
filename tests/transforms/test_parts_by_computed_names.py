"""Parts that a module is given under names put together at run time are parts: buffers in them are broadcast as DDP did."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, helpers

PROGRAM = (
    HEAD
    + """class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.{layer}(4)

    def forward(self, x):
        return self.norm(x)


class Net(nn.Module):
    def __init__(self, names=("a", "b")):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        for i in range(2):
            part = Inner()
            {gives}

    def forward(self, x):
        return getattr(self, f"part{i}")(self.lin(x))


def main(count):
    model = DDP(Net())
    for _ in range(count):
        model(torch.ones(2, 4)).sum().backward()


main(3)
"""
)


@pytest.mark.parametrize("layer", ["BatchNorm1d", "LayerNorm"])
@pytest.mark.parametrize(
    "gives",
    [
        'setattr(self, f"part{i}", part)',
        'setattr(self, "part%d" % i, part)',
        "setattr(self, names[i], part)",
        'self.add_module(f"part{i}", part)',
        'self.register_module("part" + str(i), part)',
        'self.add_module("part1", part)',
    ],
)
def test_buffers_of_such_parts_are_broadcast(gives: str, layer: str) -> None:
    text = helpers(train=PROGRAM.replace("{gives}", gives).replace("{layer}", layer))
    assert ("broadcast_buffers_before_forward" in text) == (layer == "BatchNorm1d")
