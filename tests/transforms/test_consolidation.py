"""``consolidate_state_dict`` of ZeRO's optimizer, beside others that have none, and methods of that name."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

ZERO = "import timm\nfrom torch.distributed.optim import ZeroRedundancyOptimizer\n" + HEAD
CHOICE = (
    ZERO
    + """def main(net, options, path):
    model = DDP(net)
    if options.zero:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class={cls}, lr=0.1)
    else:
        optimizer = {other}
    optimizer.consolidate_state_dict(0)
    return optimizer
"""
)


@pytest.mark.parametrize(
    ("cls", "other", "goes"),
    [
        ("torch.optim.AdamW", "torch.optim.AdamW(model.parameters(), lr=0.1)", True),
        ("torch.optim.AdamW", "timm.Adafactor(model.parameters())", False),
        ("options.cls", "torch.optim.AdamW(model.parameters(), lr=0.1)", True),
    ],
)
def test_it_goes_where_no_optimizer_has_it(cls: str, other: str, goes: bool) -> None:
    text = migrated(train=CHOICE.format(cls=cls, other=other))["train"]
    assert ("consolidate_state_dict" not in text) == goes


def test_own_methods_stay_and_arguments_keep_their_names() -> None:
    own = """class Holder:
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def on_epoch(self):
        self.consolidate_state_dict()

    def consolidate_state_dict(self):
        self.optimizer.consolidate_state_dict(recipient_rank=0)


def main(net, make):
    model = DDP(net)
    Holder(make(model)).on_epoch()
"""
    text = migrated(train=HEAD + own)["train"]
    assert "        self.consolidate_state_dict()\n" in text
    assert "        consolidate_state_dict(self.optimizer, recipient_rank=0)\n" in text


@pytest.mark.parametrize(("cls", "is_whole"), [("timm.optim.Adan", True), ("torch.optim.AdamW", False), ("options.cls", False)])
def test_what_nobody_sees_the_steps_of_steps_on_whole_parameters(cls: str, is_whole: bool) -> None:
    text = migrated(train=CHOICE.format(cls=cls, other="torch.optim.SGD(model.parameters(), lr=0.1)"))["train"]
    assert (f"optimizer = step_on_whole({cls}(model.parameters(), lr=0.1))" in text) == is_whole
    assert "ZeroRedundancyOptimizer(" not in text.replace("zero_redundancy_optimizer(", "")


OPTIONAL = HEAD + """from torch.distributed.optim import ZeroRedundancyOptimizer


def main(net, args):
    model = DDP(net)
    if (bool(args.zero) == True) and args.parallel:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=args.lr)  # saves memory
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    if (bool(args.zero) == True):
        optimizer.consolidate_state_dict(0)  # to save the whole
    return optimizer.state_dict()
"""


def test_what_was_asked_for_it_alone_goes_with_it() -> None:
    text = migrated(train=OPTIONAL)["train"]
    assert "args.zero" not in text and "pass" not in text
    assert text.count("optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)") == 1
    assert "# saves memory" in text and "# to save the whole" in text
