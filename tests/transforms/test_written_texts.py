"""What writes texts and numbers writes no model: what it is given may hold one by mistake of the analysis alone."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = HEAD + """import json
import pickle

import yaml


def main(net, path):
    model = DDP(net)
    options = {{"lr": 0.1, "model": model}}
    with open(path, "w") as file:
        {written}
"""


@pytest.mark.parametrize(
    ("written", "is_plain"),
    [("json.dump(options, file)", False), ("yaml.dump(options, file)", False), ("pickle.dump(options, file)", True)],
)
def test_models_are_made_plain_where_objects_are_written(written: str, is_plain: bool) -> None:
    assert ("as_plain(" in migrated(train=PROGRAM.format(written=written))["train"]) == is_plain
