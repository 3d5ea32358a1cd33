"""Ways from guards to gathers that no run goes, and what is only read behind guards."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

AVERAGES = HEAD + """import sys
import apex
import torch.distributed as dist


class Trainer:
    def __init__(self, net, options, amp):
        self.model = apex.parallel.DistributedDataParallel(net) if amp else DDP(net, **options)

    def save(self, values, path, with_model={default}):
        if with_model:
            values["model"] = self.model.module.state_dict()
        torch.save(values, path)

    def finish(self, counts, best):
        if dist.get_rank() == 0:
            {work}
        {rest}


def main(net, options, counts, best):
    Trainer(net, options, False).finish(counts, best)
"""


@pytest.mark.parametrize(
    ("default", "work", "rest", "held"),
    [
        ("True", "self.save({}, 'a.pt', with_model=False)", "print(counts)", False),
        ("False", "self.save({}, 'a.pt')", "print(counts)", False),
        ("False", "self.save({}, 'a.pt', True)", "print(counts)", True),
        ("True", "self.save({}, 'a.pt')", "print(counts)", True),
        ("True", "if counts > best:\n                sys.exit()", "self.save({}, 'a.pt')", False),
        ("True", "if counts > best:\n                return", "self.save({}, 'a.pt')", True),
        ("True", "print(self.model.module.names, self.model.steps + 1)", "print(counts)", False),
    ],
)
def test_only_ways_that_a_run_can_go_are_held(default: str, work: str, rest: str, held: bool) -> None:
    text = migrated(train=AVERAGES.format(default=default, work=work, rest=rest))["train"]
    behind = text.partition("def finish")[2].partition("def main")[0]
    assert ("whole_on_each_rank" in behind or "_state_dict = " in behind) is held


@pytest.mark.parametrize(
    ("use", "stays"), [("teacher.load_state_dict(student.state_dict())", True), ("torch.save(student.state_dict(), 'a')", False)]
)
def test_a_state_that_goes_into_another_sharded_model_stays(use: str, stays: bool) -> None:
    program = f"def main(one, other):\n    student, teacher = DDP(one), DDP(other)\n    {use}\n"
    text = migrated(train=HEAD + program)["train"]
    assert ("student.state_dict()" in text) is stays
