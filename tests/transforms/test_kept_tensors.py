"""What an object keeps of parameters are shards, also where a rank holds the model whole: the program computes as a whole."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

TRACKER = """\
class Tracker:
    def __init__(self, model):
        self.named = [(n, p) for n, p in model.named_parameters()]
        self.start = {{n: p.detach().clone() for n, p in self.named}}

    def report(self, model):
        for n, p in {over}:
            print(n, (p.detach() - self.start[n]).norm().item())


def main():
    torch.distributed.init_process_group("gloo")
    model = DDP(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracker = Tracker(model)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if torch.distributed.get_rank() == 0:
        tracker.report(model)


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(("over", "is_kept"), [("self.named", True), ("model.named_parameters()", False)])
def test_numbers_of_kept_parameters_behind_a_guard(over: str, is_kept: bool) -> None:
    text = migrated(train=HEAD + TRACKER.format(over=over))["train"]
    assert "whole_on_each_rank" in text
    assert ("compute_as_whole" in text) == is_kept
