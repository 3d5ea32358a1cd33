"""Averages that copy parameters where FSDP1's summon_full_params has them whole keep whole tensors: nothing is laid out."""

from __future__ import annotations

import pytest
from migrated_texts import migrated

AVERAGE = """import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Average:
    def __init__(self, model):
        self.shadow = {{}}
        {init}

    @torch.no_grad()
    def update(self, model):
        with FSDP.summon_full_params(model, writeback=False):
            for n, p in model.named_parameters():
                self.shadow[n].lerp_(p.detach(), 0.1)

    def state_dict(self):
        return self.shadow

    def load_state_dict(self, state):
        self.shadow = {{n: v.clone() for n, v in state.items()}}

    @torch.no_grad()
    def copy_to(self, model):
        with FSDP.summon_full_params(model, writeback=True):
            for n, p in model.named_parameters():
                p.data.copy_(self.shadow[n])


def run(net, path):
    model = FSDP(net)
    average = Average(model)
    {more}
    average.update(model)
    average.copy_to(model)
    average.load_state_dict(torch.load(path))
    torch.save(average.state_dict(), path)
"""
SUMMONED = """with FSDP.summon_full_params(model):
            for n, p in model.named_parameters():
                self.shadow[n] = p.detach().clone()"""
COMPREHENDED = """with FSDP.summon_full_params(model):
            self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}"""
SHARDS = "self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}"
ELSEWHERE = "average.shadow.update({n: p.detach().clone() for n, p in model.named_parameters()})"


@pytest.mark.parametrize(
    ("init", "more", "are_whole"),
    [
        (SUMMONED, "pass", True),
        (COMPREHENDED, "pass", True),
        (SHARDS, "pass", False),
        (f"self.model = model\n        {SUMMONED}", "pass", False),
        (SUMMONED, ELSEWHERE, False),
    ],
)
def test_what_was_copied_where_all_is_whole_stays_whole(init: str, more: str, are_whole: bool) -> None:
    new = migrated(train=AVERAGE.format(init=init, more=more))["train"]
    assert ("laid_out_like(self.shadow[n], p.data)" not in new) == are_whole
    assert ("average.state_dict()" in new and "average.load_state_dict(" in new) == are_whole
