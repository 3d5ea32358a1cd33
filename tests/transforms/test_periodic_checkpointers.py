"""What saves now and then by a library's checkpointer is there on every rank: its save takes all of them."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings, migrated
from to_fsdp2.transforms.findings import Level

PROGRAM = HEAD + """import torch.distributed as dist
from detectron2.checkpoint import DetectionCheckpointer
from detectron2.engine import hooks
from fvcore.common.checkpoint import PeriodicCheckpointer


class Trainer:
    def __init__(self, net, cfg):
        model = {model}
        self.checkpointer = DetectionCheckpointer(model, cfg.path, trainer=self)
        self.register_hooks(self.build_hooks(cfg))

    def build_hooks(self, cfg):
        found = []
        {put}
        return found

    def register_hooks(self, found):
        self.found = [hook for hook in found if hook is not None]


Trainer(nn.Linear(2, 2), make())
"""
HOOK = "hooks.PeriodicCheckpointer(self.checkpointer, cfg.period)"
MADE = "PeriodicCheckpointer(self.checkpointer, cfg.period, cfg.steps)"


@pytest.mark.parametrize(("put", "after"), [
    (f"# saves\n        if dist.get_rank() == 0:\n            found.append({HOOK})  # often",
     f"# saves\n        found.append({HOOK})  # often"),
    (f"found.append({HOOK} if dist.get_rank() == 0 else None)", f"found.append({HOOK})"),
    (f"found = [{MADE} if dist.get_rank() == 0 else None, log]", f"found = [{MADE}, log]"),
])  # fmt: skip
def test_every_rank_has_it(put: str, after: str) -> None:
    text = migrated(train=PROGRAM.format(model="DDP(net)", put=put))["train"]
    assert f"        {after}\n" in text
    assert "saving_whole(DetectionCheckpointer(model" in text


@pytest.mark.parametrize(("model", "put"), [
    ("net", f"if dist.get_rank() == 0:\n            found.append({HOOK})"),
    ("DDP(net)", f"if cfg.saves:\n            found.append({HOOK})"),
    ("DDP(net)", f"found.append({HOOK})"),
])  # fmt: skip
def test_elsewhere_it_is_left(model: str, put: str) -> None:
    assert f"        {put}\n" in migrated(train=PROGRAM.format(model=model, put=put))["train"]


def test_it_is_told_where_more_stands_behind_the_test() -> None:
    put = f"if dist.get_rank() == 0:\n            found.append({HOOK})\n            found.append(log)"
    told = [f for f in findings(train=PROGRAM.format(model="DDP(net)", put=put)) if f.rule == "FS417"]
    assert [f.level for f in told if "waits for the others" in f.message] == [Level.MANUAL]
