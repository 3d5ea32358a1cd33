"""Folders of tests that are called like the package: what tests import is the package, also with empty ``__init__`` files."""

from __future__ import annotations

from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

FILES = {
    "kit/__init__.py": "from .handlers import Saver\n",
    "kit/handlers/__init__.py": (
        "import torch\n\n\nclass Saver:\n    def __call__(self, model):\n        return model.state_dict()\n"
    ),
    "tests/kit/handlers/test_saver.py": (
        "import torch\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "\n"
        "from kit.handlers import Saver\n"
        "\n"
        "\n"
        "def test_saver(options):\n"
        "    model = DistributedDataParallel(torch.nn.Linear(2, 2), **options)\n"
        "    assert Saver()(model)\n"
    ),
}
EMPTY = ["tests/__init__.py", "tests/kit/__init__.py", "tests/kit/handlers/__init__.py"]


def test_tests_import_the_package_and_its_helpers() -> None:
    sources = {path: Source.decode(path, text.encode()) for path, text in FILES.items()}
    facts = [extract(source) for source in sources.values()]
    sources |= {path: Source.decode(path, b"") for path in EMPTY}
    analysis = analyse(facts, sources.__getitem__, Options(target_torch=(2, 13)), paths=list(sources))
    assert not analysis.errors
    assert "from kit.handlers.fsdp2_helpers import shard_like_ddp" in analysis.texts["tests/kit/handlers/test_saver.py"]
    assert list(analysis.new_files) == ["kit/handlers/fsdp2_helpers.py"]
    assert "model_state(model)" in analysis.texts["kit/handlers/__init__.py"]
