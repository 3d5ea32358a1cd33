"""Models that go into DataParallel where there are no ranks: they keep their wrapper, and what is in it."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = HEAD + """def is_parallel(model):
    return type(model) in (nn.DataParallel, nn.parallel.DistributedDataParallel)


def state(model):
    return model.module.state_dict() if is_parallel(model) else model.state_dict()


def main(rank):
    model = nn.Linear(4, 4)
    {single}
    if rank != -1:
        model = DDP(model)
    model(torch.ones(2, 4)).sum().backward()
    return state(model)


main(0)
"""


@pytest.mark.parametrize("single", ["if rank == -1:\n        model = nn.DataParallel(model)", "pass"])
def test_a_choice_that_is_right_for_it_and_for_sharded_models_stays(single: str) -> None:
    text = migrated(train=PROGRAM.format(single=single))["train"]
    assert "    return model.module.state_dict() if is_parallel(model) else model.state_dict()\n" in text
    assert "    return type(model) in (nn.DataParallel, nn.parallel.DistributedDataParallel)\n" in text
