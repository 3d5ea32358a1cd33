"""Attributes that are set on a wrapper: the model in it did not see them."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings, migrated

PROGRAM = HEAD + """class Net(nn.Linear):
    def forward(self, x):
        return super().forward(x) * self.scale


class Other:
    def run(self):
        return self.epoch


def main(make, options):
    net = {net}
    model = DDP(net, **options)
    {set}
    return model(torch.ones(2, 4))
"""


@pytest.mark.parametrize(("net", "statement", "is_kept"), [
    ("Net(4, 4)", "model.scale = 2", True),
    ("make()", "model.scale = 2", True),
    ("Net(4, 4)", "model.epoch = 2", False),
    ("Net(4, 4)", "net.scale = 2", False),
    ("Net(4, 4)", "model.module.scale = 2", False),
    ("nn.Linear(4, 4)", "model.scale = 2\n    print(model.scale)", False),
])  # fmt: skip
def test_what_the_model_asks_for_is_kept_from_it(net: str, statement: str, is_kept: bool) -> None:
    text = migrated(train=PROGRAM.replace("{net}", net).replace("{set}", statement))["train"]
    assert ("on_wrapper(model).scale = 2" in text) == is_kept


def test_what_is_read_again_is_told() -> None:
    program = PROGRAM.replace("{net}", "Net(4, 4)").replace("{set}", "model.scale = 2\n    print(model.scale)")
    assert [f.message for f in findings(train=program) if f.rule == "FS613"] == [
        "a wrapper kept scale to itself: now the model in it sees it too"
    ]
