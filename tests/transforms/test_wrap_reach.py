"""A file that only imports a library with a wrap in it is left alone, unless what it runs may come to the wrap."""

from __future__ import annotations

import pytest
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

LIBRARY = """import torch
from torch.nn.parallel import DistributedDataParallel


def distribute(model):
    return DistributedDataParallel(model)


class Trainer:
    def __init__(self, model):
        self.model = model

    def prepare(self):
        self.model = distribute(self.model)


class Net(torch.nn.Module):
    pass


WAYS = {"ddp": distribute}
"""
TRAIN = """import library
from library import Net, Trainer

if __name__ == "__main__":
    trainer = Trainer(Net())
    trainer.prepare()
    print(library.WAYS)
"""
USES = "    with model.no_sync():\n        return model.module\n"


def is_touched(test: str, **others: str) -> bool:
    """Whether the uses of a model in ``test_library.py`` are rewritten."""
    files = {"library.py": LIBRARY, "train.py": TRAIN, "test_library.py": test, **{f"{k}.py": v for k, v in others.items()}}
    sources = {path: Source.decode(path, text.encode()) for path, text in files.items()}
    facts = [extract(source) for source in sources.values()]
    analysis = analyse(facts, sources.__getitem__, Options(target_torch=(2, 13)), paths=list(sources))
    assert not analysis.errors
    assert "shard_like_ddp" in analysis.texts["library.py"] or "fully_shard" in analysis.texts["library.py"]
    return "test_library.py" in analysis.texts


@pytest.mark.parametrize(
    "test",
    [
        f"import library\n\ndef test(model=None):\n{USES}",
        f"from library import Net\n\ndef test(make):\n    model = make(Net)\n{USES}",
        f"import library\n\ndef test(make):\n    model = library.Trainer(make()).model\n{USES}",
    ],
)
def test_who_never_comes_to_the_wrap_is_left_alone(test: str) -> None:
    assert not is_touched(test)


@pytest.mark.parametrize(
    "test",
    [
        f"import library\n\ndef test(make):\n    model = library.distribute(make())\n{USES}",
        f"import library\n\ndef test(make):\n    model = getattr(library, 'distribute')(make())\n{USES}",
        f"from library import distribute as spread\n\ndef test(make):\n    model = spread(make())\n{USES}",
        f"import library\n\ndef test(make, way):\n    model = library.WAYS[way](make())\n{USES}",
        f"import library\n\ndef test(make, way):\n    way(library.Trainer(make()).prepare)\n    model = make()\n{USES}",
        f"import library\n\ndef test(make):\n    model = getattr(library.Trainer(make()), 'prepare')()\n{USES}",
        f"import importlib\nimport library\n\ndef test(make, kind):\n    model = make(importlib.import_module(kind))\n{USES}",
    ],
)
def test_who_may_come_to_it_is_not(test: str) -> None:
    assert is_touched(test)


def test_the_way_may_lead_through_other_files() -> None:
    between = "import library\n\ndef ready(model):\n    return library.distribute(model)\n"
    assert is_touched(f"from between import ready\n\ndef test(make):\n    model = ready(make())\n{USES}", between=between)
    run = "import between\nimport library\n\nif __name__ == '__main__':\n    between.ready(library.Net())\n"
    assert not is_touched(f"import between\n\ndef test(make):\n    model = make()\n{USES}", between=between, run=run)


def test_wraps_at_import_count_for_all_who_import() -> None:
    wrapped = "import library\n\nMODEL = library.distribute(library.Net())\n"
    assert is_touched(f"import ready_made\n\ndef test(make):\n    model = make(ready_made)\n{USES}", ready_made=wrapped)


def test_what_is_imported_by_a_name_may_be_part_of_the_program() -> None:
    run = (
        "import importlib\nimport library\n\nif __name__ == '__main__':\n    model = library.distribute(library.Net())\n"
        "    importlib.import_module(input()).save(model)\n"
    )
    plugin = f"def save(model):\n{USES}"
    files = {"library.py": LIBRARY, "train.py": run, "savers/plain.py": plugin, "tests/test_plain.py": plugin}
    sources = {name: Source.decode(name, text.encode()) for name, text in files.items()}
    facts = [extract(source) for source in sources.values()]
    texts = analyse(facts, sources.__getitem__, Options(target_torch=(2, 13)), paths=list(sources)).texts
    assert "savers/plain.py" in texts and "tests/test_plain.py" not in texts


def test_guards_of_a_script_that_never_wraps_hold_nothing() -> None:
    common = "from library import Net\n\n\ndef create():\n    return Net()\n"
    sample = (
        "import torch\nimport torch.distributed as dist\nfrom common import create\n\n\n"
        "class Sampler:\n    def __init__(self):\n        self.model = create()\n\n    def run(self):\n"
        "        if dist.get_rank() == 0:\n            print(self.model(torch.ones(2)))\n\n\n"
        'if __name__ == "__main__":\n    Sampler().run()\n'
    )
    main = "from common import create\nfrom library import distribute\n\nmodel = distribute(create())\n"
    assert not is_touched(sample, main=main, common=common)
    wraps = sample.replace("= create()", "= distribute(create())")
    wraps = wraps.replace("from common", "from library import distribute\nfrom common")
    assert is_touched(wraps, main=main, common=common)
