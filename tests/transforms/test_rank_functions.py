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
