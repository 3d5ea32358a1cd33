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


@pytest.mark.parametrize(("other", "is_kept"), [
    ("apex.parallel.DistributedDataParallel(getattr(self, name))", True), ("getattr(self, name).eval()", False),
])  # fmt: skip
def test_a_librarys_wrapper_in_the_other_branch_keeps_its_module(other: str, is_kept: bool) -> None:
    program = HEAD + (
        "import apex\n\n\nclass Net(nn.Linear):\n    def generate(self, x):\n        return self(x)\n\n\n"
        "class Trainer:\n    def __init__(self, options):\n        self.options, self.model = options, Net(4, 4)\n"
        "        for name in ['model']:\n            if options.plain:\n"
        "                setattr(self, name, DDP(getattr(self, name)))\n"
        f"            else:\n                setattr(self, name, {other})\n\n"
        "    def sample(self, x):\n        model = self.model.module if self.options.many else self.model\n"
        "        return model.generate(x)\n\n\n"
        "def main(options):\n    trainer = Trainer(options)\n    trainer.model(torch.ones(2, 4)).sum().backward()\n"
        "    return trainer.sample(torch.ones(2, 4))\n\n\nmain(None)\n"
    )
    text = migrated(train=program)["train"]
    assert ("unwrap(self.model)" in text) == is_kept
