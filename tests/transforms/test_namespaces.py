"""What a namespace is made with is what its attributes are."""

from __future__ import annotations

import pytest
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

PROGRAM = """
import argparse
import types
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def evaluate(run):
    model = run.model
    if dist.get_rank() != 0:
        return
    print(model(torch.ones(1, 2)))


def main():
    model = DDP(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    evaluate({}(model=model, epoch=1))


main()
"""


@pytest.mark.parametrize("name", ["argparse.Namespace", "types.SimpleNamespace"])
def test_a_model_in_a_namespace_is_held_whole_for_one_rank(name: str) -> None:
    source = Source.decode("train.py", PROGRAM.format(name).encode())
    analysis = analyse([extract(source)], {"train.py": source}.__getitem__, Options(), paths=["train.py"])
    assert "with whole_on_each_rank(model):\n        if dist.get_rank() != 0:" in analysis.texts["train.py"]


def test_a_module_of_a_package_is_no_library_of_its_name() -> None:
    """`import torch` beside `torch.py` in a package is torch."""
    files = {"trainer/__init__.py": "", "trainer/torch.py": "import torch\n\nsizes = []\n"}
    files["trainer/loop.py"] = (
        "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
        "def clip(net, optimizer, options):\n    model = DDP(net, **options)\n"
        "    return model, torch.nn.utils.clip_grad_norm_(parameters(optimizer), 1.0)\n"
    )
    sources = {path: Source.decode(path, text.encode()) for path, text in files.items()}
    facts = [extract(source) for source in sources.values()]
    analysis = analyse(facts, sources.__getitem__, Options(), paths=list(sources))
    assert "clip_grad_norm(parameters(optimizer), 1.0)" in analysis.texts["trainer/loop.py"]


def of_unseen(function: str) -> str:
    """The program with a function that gets what nobody sees, once the model is wrapped."""
    program = PROGRAM.format("types.SimpleNamespace").replace("import types\n", "import ast\nimport importlib\nimport types\n")
    program = program.replace("\n\n\nmain()\n", f"\n    read(given())\n\n\n{function}\n\n\nmain()\n")
    program = program.replace("import torch\n", "import torch\nfrom tools import given\n", 1)
    source = Source.decode("train.py", program.encode())
    analysis = analyse([extract(source)], {"train.py": source}.__getitem__, Options(), paths=["train.py"])
    return analysis.texts["train.py"]


def test_what_is_imported_by_name_is_a_name() -> None:
    for way, is_left in (("importlib.import_module({})", True), ("print({})", False)):
        text = of_unseen(f"def read(infos):\n    for info in infos:\n        {way.format('info.module')}")
        assert (way.format("info.module") in text) == is_left, text


@pytest.mark.parametrize(
    ("test", "is_known"),
    [
        ("assert isinstance(node, ast.ImportFrom)", True),
        ("if not isinstance(node, ast.ImportFrom):\n            continue", True),
        ("if isinstance(node, ast.ImportFrom):\n            continue", False),
        ("assert node", False),
    ],
)
def test_what_is_asked_in_front_is_known_behind_it(test: str, is_known: bool) -> None:
    text = of_unseen(f"def read(nodes):\n    for node in nodes:\n        {test}\n        print(node.module)")
    assert ("print(node.module)" in text) == is_known, text
