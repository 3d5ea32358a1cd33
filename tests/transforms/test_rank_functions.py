"""Guards whose rank comes from a function."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated


@pytest.mark.parametrize("name", ["get_data_parallel_rank", "dp_rank", "position"])
def test_ranks_that_functions_give(name: str) -> None:
    """The rank within a group, by whatever name a function has that returns it."""
    groups = f"import torch.distributed as dist\n\nGROUP = None\n\n\ndef {name}():\n    return dist.get_rank(group=GROUP)\n"
    train = HEAD + (
        f"import groups\n\n\ndef save(net, options, path):\n    model = DDP(net, **options)\n    if groups.{name}() == 0:\n"
        "        torch.save(model.module.state_dict(), path)\n"
    )
    lines = migrated(train=train, groups=groups)["train"].splitlines()
    guard = next(i for i, line in enumerate(lines) if "if groups" in line)
    assert any(".state_dict()" in line for line in lines[:guard]) and ".state_dict()" not in lines[guard + 1]


def test_a_flag_that_callers_hand_in() -> None:
    """Objects that one rank makes because its caller says so, in a method that the others leave."""
    train = HEAD + (
        "import torch.distributed as dist\n\n\n"
        "class Log:\n"
        "    def __init__(self, path, enabled):\n"
        '        self.file = open(path, "w") if enabled else None\n\n'
        "    def norms(self, model):\n"
        "        if self.file is None:\n"
        "            return\n"
        "        for parameter in model.parameters():\n"
        "            self.file.write(str(parameter.grad.norm().item()))\n\n\n"
        "def train(net, options, path):\n"
        "    model = DDP(net, **options)\n"
        "    log = Log(path, enabled=dist.get_rank() == 0)\n"
        "    log.norms(model.module)\n\n\n"
        'train(nn.Linear(2, 2), {}, "norms.txt")\n'
    )
    lines = migrated(train=train)["train"].splitlines()
    leave = next(i for i, line in enumerate(lines) if "self.file is None" in line)
    assert "whole_on_each_rank(model)" in lines[leave - 1]
