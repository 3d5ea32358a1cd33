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


@pytest.mark.parametrize(("package", "is_found"), [("torchvision.models", False), ("tools", True)])
def test_packages_from_elsewhere_hold_nothing_of_the_repository(package: str, is_found: bool) -> None:
    """As copies of mmcv's checkpoints list the models of torchvision: no script of the repository is found so."""
    wraps = WRAPS + "\n\nif __name__ == '__main__':\n    build(nn.Linear(2, 2), {}).no_sync()\n"
    clips = "import torch\n\n\ndef run(model):\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    other = f"""import pkgutil
from importlib import import_module

import torchvision
import tools
from tools.restoring import run


if __name__ == '__main__':
    torch.distributed.init_process_group("gloo")
    names = [name for _, name, _ in pkgutil.walk_packages({package}.__path__)]
    run([import_module(f'{package}.{{name}}') for name in names][0].build("like train"))
"""
    found = texts({"train": wraps, "run": other, "tools/restoring": clips})
    assert (found["tools/restoring"] != clips) == is_found
