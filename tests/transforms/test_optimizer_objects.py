"""Objects of libraries that get an optimizer: some stand for it, others only hold it."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings, migrated

PROGRAM = HEAD + """import argparse
import fvcore
from apex.parallel.LARC import LARC


def main():
    model = DDP(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = {made}
    model(torch.ones(2, 4)).sum().backward()
    return made


main()
"""


@pytest.mark.parametrize(("made", "stands_for_it"), [
    ("LARC(optimizer)", True),
    ("LARC(optimizer=optimizer, trust_coefficient=0.1)", True),
    ("argparse.Namespace(optimizer=optimizer)", False),
    ("fvcore.Checkpointer(model, '.', optimizer=optimizer)", False),
    ("fvcore.Trainer(optimizer=optimizer, model=model)", False),
])  # fmt: skip
def test_what_stands_for_an_optimizer_steps_on_whole_parameters(made: str, stands_for_it: bool) -> None:
    assert ("step_on_whole(" in migrated(train=PROGRAM.format(made=made))["train"]) is stands_for_it


@pytest.mark.parametrize("given", ["args, model", "model, opt='lamb'", "args, model.module"])
def test_what_a_librarys_factory_makes_is_asked_for_its_kind_when_it_runs(given: str) -> None:
    text = migrated(train=HEAD + f"""from timm.optim import create_optimizer


def main(args, net):
    model = DDP(net)
    optimizer = create_optimizer({given})
    model(1).sum().backward()
    optimizer.step()
""")["train"]
    assert "optimizer = step_on_whole(create_optimizer(" in text and text.count("step_on_whole(") == 1


def test_an_optimizer_of_a_library_that_hands_out_whole_parameters_is_a_stop_where_its_name_stands() -> None:
    found = findings(train=HEAD + """from fairscale.optim.oss import OSS


def main(args, net):
    model = DDP(net)
    kind = torch.optim.AdamW
    if args.shard:
        kind = OSS
    optimizer = kind(model.parameters(), lr=0.1)
    optimizer.step()
""")
    assert [(finding.line, finding.level.value) for finding in found if finding.rule == "FS415"] == [(13, "manual")]


@pytest.mark.parametrize(("use", "is_one"), [
    ("assert is_supported_optimizer(optimizer)", False),
    ("if not is_supported_optimizer(optimizer):\n        return", False),
    ("optimizer = scaled_optimizer(optimizer)", True),
])  # fmt: skip
def test_what_is_only_tested_is_no_optimizer(use: str, is_one: bool) -> None:
    text = migrated(train=HEAD + f"""from others import is_supported_optimizer, scaled_optimizer


def main(args, net):
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    {use}
    model(1).sum().backward()
    optimizer.step()
""")["train"]
    assert ("step_on_whole(" in text) is is_one
