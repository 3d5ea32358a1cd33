"""State that an optimizer keeps beside its steps, where sharded optimizer state is read."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

LOAD = """\
import torch.distributed.checkpoint as dist_cp
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def load(model, optim, weights, reader):
    state = load_sharded_optimizer_state_dict(model_state_dict=weights, optimizer_key="optim", storage_reader=reader)
    return FSDP.optim_state_dict_to_load(model, optim, state["optim"])
"""
OPTIMIZER = """\
import torch


class Lion(torch.optim.Optimizer):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.prepare(p)
                {step}

    def prepare(self, p):
        self.state[p]["average"] = torch.zeros_like(p)

    def clip(self, p):
        state = self.state[p]
        {clip}
"""


@pytest.mark.parametrize(
    ("step", "clip", "expected"),
    [
        ("p.add_(1)", "state['norm'] = p.grad.norm()", "'norm' (line 16 of lion.py)"),
        ("p.add_(1)", "self.state[p]['norm'] = p.grad.norm()", "'norm' (line 16 of lion.py)"),
        ("p.add_(1)", "print(state['norm'])", ""),
        ("self.clip(p)", "state['norm'] = p.grad.norm()", ""),
    ],
)
def test_what_a_first_step_does_not_make_is_named(step: str, clip: str, expected: str) -> None:
    analysis, results = analyse_texts({"load.py": LOAD, "lion.py": OPTIMIZER.format(step=step, clip=clip)})
    finding = next(finding for finding in analysis.findings if finding.rule == "FS412")
    assert finding.level is (Level.REVIEW if expected else Level.SAFE)
    assert ("a new optimizer gets back what its first step makes" in finding.message) == bool(expected)
    assert expected in finding.message
    assert "get_optimizer_state_dict(model, optim)" in results["load.py"]
