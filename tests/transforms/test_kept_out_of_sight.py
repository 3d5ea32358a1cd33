"""Objects of classes with code that is not seen, which keep a sharded model and are handed on behind a guard."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings
from to_fsdp2.transforms.findings import Level

SAVES = HEAD + """import torch.distributed as dist
from fvcore.common.checkpoint import Checkpointer, PeriodicCheckpointer


class Saver(Checkpointer):
    def add(self, name):
        self.name = name


class Plain:
    def __init__(self, model):
        self.model = model


class Periodic(PeriodicCheckpointer):
    pass


def run(net, cfg):
    model = DDP(net)
    saver = {made}
    hooks = []
    if dist.get_rank() == 0:
        hooks.append({handed})
    return hooks
"""


@pytest.mark.parametrize(
    ("made", "handed", "told"),
    [
        ("Saver(model, cfg.path)", "Periodic(saver, cfg.period)", True),
        ("Saver(cfg.path)", "Periodic(saver, cfg.period)", False),
        ("Saver(model, cfg.path)", "Plain(saver)", False),
        ("Plain(model)", "Periodic(saver, cfg.period)", False),
    ],
)
def test_what_code_out_of_sight_may_save_on_one_rank_is_told(made: str, handed: str, told: bool) -> None:
    found = [f for f in findings(train=SAVES.format(made=made, handed=handed)) if f.rule == "FS414"]
    assert [f.level for f in found if "out of sight" in f.message] == ([Level.MANUAL] if told else [])
