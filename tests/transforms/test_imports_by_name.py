"""Files that imports by name may find: what these are given says which."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, texts

WRAPS = (
    HEAD
    + """def build(net, options):
    return DDP(net, **options)
"""
)
USES = """import torch


def run(model):
    with model.no_sync():
        return model.module
"""
IMPORTS = """import importlib
import torch
import train


def find(name):
    {statement}


if __name__ == '__main__':
    find(input()).run(train.build(torch.nn.Linear(2, 2), {{}}))
"""


@pytest.mark.parametrize(
    ("statement", "is_found"),
    [
        ("return importlib.import_module(name)", True),
        ("return importlib.import_module(f'tools.{name}')", True),
        ("return importlib.import_module('models.' + name)", False),
        ("return importlib.import_module('models.{}'.format(name))", False),
        ("return importlib.import_module(f'{name}.restoring')", True),
        ("return importlib.import_module(f'.{name}', 'tools')", True),
        ("return importlib.import_module('%s.restoring' % name)", True),
        ("return importlib.import_module(f'tools.rest{name}')", True),
        ("return list(map(importlib.import_module, name))[0]", True),
        ("return importlib.import_module('train')", False),
        ("return instantiate(name)", False),
        ("print('tools.restoring')\n    return instantiate(name)", True),
    ],
)
def test_a_file_that_nobody_imports(statement: str, is_found: bool) -> None:
    found = texts({"train": WRAPS, "run": IMPORTS.format(statement=statement), "tools/restoring": USES})
    assert (found["tools/restoring"] != USES) == is_found
