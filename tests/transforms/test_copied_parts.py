"""Parts of sharded models that are copied or saved as objects: their hooks can be neither."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = HEAD + """import copy


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.towers = nn.ModuleDict({{"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}})

    def forward(self, x):
        return self.towers["a"](x) + self.towers["b"](x)


def main(batches):
    model = DDP(Net())
    for x in batches:
        model(x).sum().backward()
    {use}


main([torch.ones(2, 4)])
"""


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ('torch.save(model.module.towers["a"], "a.pt")', 'torch.save(as_plain(model.towers["a"]), "a.pt")'),
        ('torch.save({"a": model.module.towers["a"]}, "a.pt")', 'torch.save(as_plain({"a": model.towers["a"]}), "a.pt")'),
        (
            "for name, tower in model.module.towers.items():\n        torch.save(tower, name)",
            "for name, tower in model.towers.items():\n        torch.save(as_plain(tower), name)",
        ),
        ('first = copy.deepcopy(model.module.towers["a"])', 'first = plain_copy(model.towers["a"])'),
    ],
)
def test_parts_are_written_and_copied_plain(use: str, expected: str) -> None:
    assert expected in migrated(train=PROGRAM.format(use=use))["train"]
