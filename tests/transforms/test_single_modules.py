"""Modules that are installed by themselves: the helpers that they use are defined in them."""

from __future__ import annotations

import pytest
from to_fsdp2.transforms.engine import Options, analyse, extract
from to_fsdp2.transforms.text.source import Source

OPTIMIZER = """import torch
from torch.optim import Optimizer


class Scaled(Optimizer):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad / p.grad.norm(dim=0), alpha=group["lr"])
"""
TRAIN = """import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from scaled import Scaled


def main(net, options):
    model = DDP(net, **options)
    return Scaled(model.parameters(), {"lr": 0.1})
"""


@pytest.mark.parametrize("listed", ["scaled", "other"])
def test_what_is_installed_alone_imports_nothing_from_beside_it(listed: str) -> None:
    setup = f"from setuptools import setup\n\nsetup(name='scaled', py_modules=['{listed}'])\n"
    files = {"scaled.py": OPTIMIZER, "train.py": TRAIN, "setup.py": setup}
    sources = {path: Source.decode(path, text.encode()) for path, text in files.items()}
    facts = [extract(source) for source in sources.values()]
    analysis = analyse(facts, sources.__getitem__, Options(target_torch=(2, 13)), paths=list(sources))
    text = analysis.texts["scaled.py"]
    assert "    @on_whole_parameters\n" in text
    assert ("def on_whole_parameters(" in text) == (listed == "scaled")
    assert ("from fsdp2_helpers import" in text) == (listed != "scaled")
    assert "from fsdp2_helpers import shard_like_ddp" in analysis.texts["train.py"]
