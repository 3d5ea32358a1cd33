"""Ranks that have left behind a guard are missed at the next one: nothing is gathered there then."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = HEAD + """import torch.distributed as dist


def main(batches, last, every):
    model = DDP(nn.Linear(4, 4))
    for step, x in enumerate(batches):
        model(x).sum().backward()
        if dist.get_rank() == 0 and step == last:
            torch.save(model.state_dict(), "last.pt")
            {leave}
        {between}
        if dist.get_rank() == 0 and step % every == 0:
            {second}


main([torch.ones(2, 4)], 3, 2)
"""


@pytest.mark.parametrize("asked", ["", " and next(flags)", " and x.sum() > 0"])
def test_a_test_that_is_known_in_part_has_no_known_contrary(asked: str) -> None:
    program = PROGRAM.format(leave="return", between="pass", second="print(float(model.weight.sum()))")
    program = program.replace("step == last:", f"step == last{asked}:").replace("batches, last", "batches, flags, last")
    assert ("step != last" in migrated(train=program)["train"]) is (not asked)


@pytest.mark.parametrize(("leave", "between", "is_missed"), [
    ("return", "pass", True), ("break", "pass", True), ("print('saved')", "pass", False), ("return", "last = step", False),
])  # fmt: skip
@pytest.mark.parametrize("second", ["print(float(model.weight.sum()))", "torch.save(model.state_dict(), 'step.pt')"])
def test_what_ranks_have_left_for_is_no_longer_asked_of_them(leave: str, between: str, is_missed: bool, second: str) -> None:
    text = migrated(train=PROGRAM.format(leave=leave, between=between, second=second))["train"]
    assert ("step % every == 0 and step != last" in text) is is_missed
