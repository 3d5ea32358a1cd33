"""States that some ranks alone load into a sharded model: all hold it whole for that, or rows of one rank alone change."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings, migrated

PROGRAM = (
    HEAD
    + """import torch.distributed as dist


class Average:
    def __init__(self, model):
        self.model = model
        self.kept = None

    def put_in(self, state):
        self.kept = {{k: v.clone() for k, v in self.model.state_dict().items()}}
        self.model.load_state_dict(state)

    def take_out(self):
        self.model.load_state_dict(self.kept)


def main(net, state):
    model = DDP(net)
    average = Average(model) if dist.get_rank() == 0 else None
    {before}
    print(model(torch.ones(2)))
    {after}
"""
)


@pytest.mark.parametrize(
    "call", ["average.put_in(state)", "average.take_out()", "model.load_state_dict(state)", "model.module.load_state_dict(state)"]
)
@pytest.mark.parametrize("test", ["average is not None", "dist.get_rank() == 0"])
def test_loads_are_held(test: str, call: str) -> None:
    program = PROGRAM.format(before="pass", after=f"if {test}:\n        {call}")
    assert "_on_each_rank(" in migrated(train=program)["train"]
    assert any(finding.advice.startswith("What these ranks load, all have") for finding in findings(train=program))


def test_a_load_in_front_of_the_wrap_is_not_held() -> None:
    text = HEAD + "import torch.distributed as dist\n\n\ndef main(net, state):\n    if dist.get_rank() == 0:\n"
    text += "        net.load_state_dict(state)\n    return DDP(net)\n\n\nmain(nn.Linear(2, 2), {})\n"
    text = migrated(train=text)["train"]
    assert "_on_each_rank(" not in text
