"""What a loop does through functions that it calls: steps in front of a skip, backwards that no call has decided for."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings, migrated
from to_fsdp2.transforms.findings import Level

JOINED = (
    HEAD
    + """
def apply(optimizer):
    optimizer.step()


def learn(loss):
    loss.backward()


def main(loader):
    model = DDP(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = 0
    with model.join():
        for batch in loader:
            {body}
            seen += len(batch)
    print(seen)


main([])
"""
)


@pytest.mark.parametrize(
    "body",
    [
        "model(batch).sum().backward()\n            optimizer.step()",
        "model(batch).sum().backward()\n            apply(optimizer)",
        "learn(model(batch).sum())\n            apply(optimizer)",
    ],
)
def test_what_a_rank_counts_behind_the_step_is_its_own(body: str) -> None:
    text = migrated(train=JOINED.replace("{body}", body))["train"]
    assert "until_all_ranks_finish(loader, model)" in text
    last = body.rpartition("\n")[2].strip()
    assert text.index(last) < text.index("if repeats_batch(model):") < text.index("seen += len(batch)")


WINDOWS = (
    HEAD
    + """from contextlib import nullcontext


def last(model, batch):
    {last}


def main(batches):
    model = DDP(nn.Linear(4, 4))
    for i, batch in enumerate(batches):
        with model.no_sync() if i % 4 != 3 else nullcontext():
            model(batch).sum().backward()
    last(model, batches[0])


main([])
"""
)


@pytest.mark.parametrize(("last", "is_set"), [("model(batch)", True), ("model(batch).sum().backward()", False)])
def test_one_call_sets_for_backwards_only_where_it_is_made_for_all(last: str, is_set: bool) -> None:
    text = migrated(train=WINDOWS.replace("{last}", last))["train"]
    assert ("model.set_requires_gradient_sync(i % 4 == 3)" in text) is is_set
    assert ("with no_gradient_sync(model) if i % 4 != 3 else nullcontext():" in text) is not is_set


SAMPLING = (
    HEAD
    + """class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(4, 4)

    def forward(self, x):
        return self.cell(x)

    def sample(self, x):
        return self.rounds(x)

    def rounds(self, x):
        for step in range(9):
            x = self.cell(x)
            {leaves}
        return x


def main():
    model = DDP(Writer())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        {before}
        loss = model.module.sample(torch.ones(2, 4)).sum()
        loss.backward()
        optimizer.step()


main()
"""
)


@pytest.mark.parametrize(
    ("leaves", "level"),
    [("if x.max() > 3:\n                break", Level.MANUAL), ("x = x.relu()", Level.REVIEW)],
)
def test_loops_that_a_rank_may_leave_with_gradients_are_told_of(leaves: str, level: Level) -> None:
    program = SAMPLING.replace("{leaves}", leaves).replace("        {before}\n", "")
    assert [f.level for f in findings(train=program) if f.rule == "FS308"] == [level]


def test_loops_without_gradients_are_not() -> None:
    program = SAMPLING.replace("{leaves}", "if x.max() > 3:\n                break").replace("        {before}\n", "")
    program = program.replace("    def sample(self, x):", "    @torch.no_grad()\n    def sample(self, x):")
    assert all(f.level is not Level.MANUAL for f in findings(train=program))
