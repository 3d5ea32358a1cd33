"""Repositories whose files import each other through the name of the root folder, which whoever runs them has on the path."""

from __future__ import annotations

import pytest
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

MISC = "import torch\n\n\ndef save(model, path):\n    torch.save(model.state_dict(), path)\n"
TRAIN = """import torch
from torch.nn.parallel import DistributedDataParallel
{more}
import {root}.util.misc as misc
import {root}.util.words as words
from {root}.models import Net


def main(options, path):
    model = DistributedDataParallel(Net(), **options)
    misc.save(model, path)


if __name__ == "__main__":
    main(*settings())
"""
MODELS = "import torch\n\n\nclass Net(torch.nn.Module):\n    pass\n"


@pytest.mark.parametrize(
    ("root", "more", "is_own"),
    [
        ("kit", "", True),
        ("kit", "import kit\n", True),
        ("kit", "from kit.engines import run\n", False),
        ("lab.vision.kit", "", True),
        ("lab.vision.kit", "from lab.vision.loaders import load\n", False),
        ("json", "", False),
    ],
)
def test_what_is_below_such_a_name_is_the_repositorys(root: str, more: str, is_own: bool) -> None:
    files = {"train.py": TRAIN.format(root=root, more=more), "util/misc.py": MISC, "models.py": MODELS}
    files["util/words.py"] = "WORDS = ()\n"
    sources = {path: Source.decode(path, text.encode()) for path, text in files.items()}
    read = [source for path, source in sources.items() if path != "util/words.py"]  # which says nothing of models
    facts = [extract(source) for source in read]
    analysis = analyse(facts, sources.__getitem__, Options(target_torch=(2, 13)), paths=list(sources))
    assert ("model_state(model)" in analysis.texts.get("util/misc.py", "")) == is_own
    if is_own:
        assert f"from {root}.util.fsdp2_helpers import shard_like_ddp\n" in analysis.texts["train.py"]
