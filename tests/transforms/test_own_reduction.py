"""Classes derived from DDP that work on its reducer: DDP stays for them, and nothing that belongs to it changes."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings, migrated

PROGRAM = (
    HEAD
    + """class Own(DDP):
    def forward(self, *inputs):
        {before}
        return self.module.training_step(*inputs)


class Task(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)

    def training_step(self, x):
        return self.net(x).sum()


def main(options):
    model = Own(Task(), **options)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.ones(2, 4)).backward()
    optimizer.step()
    if torch.distributed.get_rank() == 0:
        torch.save(model.module.state_dict(), "a.pt")
"""
)


@pytest.mark.parametrize(
    ("before", "stays"),
    [("self.reducer.prepare_for_forward()", True), ("self.reducer = None; print(self.reducer)", False), ("print(inputs)", False)],
)
def test_a_class_that_works_on_the_reducer_stays(before: str, stays: bool) -> None:
    program = PROGRAM.format(before=before)
    assert (migrated(train=program)["train"] == program) == stays
    told = [f for f in findings(train=program) if f.rule == "FS605" and f.message.startswith("DDP stays")]
    assert len(told) == stays


@pytest.mark.parametrize("asked", [
    "print(getattr(self, 'require_backward_grad_sync', True))", "self.require_forward_param_sync = False",
])  # fmt: skip
def test_what_such_a_class_asks_of_itself_stays_beside_other_wraps(asked: str) -> None:
    before = f"self.reducer.prepare_for_forward()\n        {asked}"
    program = PROGRAM.replace("Own(Task(), **options)", "built(options)").format(before=before)
    program = f"from registry import built\n{program}\n\nother = DDP(nn.Linear(4, 4))\nother(torch.ones(2, 4)).sum().backward()\n"
    assert before in migrated(train=program)["train"]
    assert not [f for f in findings(train=program) if f.rule in ("FS604", "FS606")]
