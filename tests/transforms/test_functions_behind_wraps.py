"""Functions that are defined behind a wrap and read its variable: the model is sharded there, or they had raised."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = (
    HEAD
    + """from lib import get_model


def main(options, loader):
    model = get_model()
    {wrap}

    def save({parameters}):
        torch.save(model.module.state_dict(), "a.pt")

    for x in loader:
        model(x).sum().backward()
        save(model)
{behind}"""
)
WRAP = "model = DDP(model, **options)"


@pytest.mark.parametrize(
    ("wrap", "parameters", "behind", "is_sure"),
    [
        (WRAP, "_", "", True),
        (WRAP, "model", "    save(get_model())\n", False),
        (WRAP, "_", "    model = model.module\n    save(model)\n", True),  # the last one had raised
        (f"if options:\n        {WRAP}", "_", "", True),  # without options it had raised
    ],
)
def test_it_is_read_without_a_question(wrap: str, parameters: str, behind: str, is_sure: bool) -> None:
    text = migrated(train=PROGRAM.format(wrap=wrap, parameters=parameters, behind=behind))["train"]
    assert ("        torch.save(model.state_dict()," in text) == is_sure
