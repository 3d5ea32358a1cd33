"""The state of one sharded model that is loaded into another: gathered there, and shared out here, behind a reshard."""

from __future__ import annotations

from migrating import analyse_texts

_AGENT = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Agent:
    def __init__(self):
        self.online, self.target = self.make(), self.make()
        self.optimizer = torch.optim.AdamW(self.online.parameters())

    def make(self):
        return FSDP(build())

    def sync(self):
        self.target.load_state_dict(self.online.state_dict())

    def learn(self, batch):
        with torch.no_grad():
            goal = self.target(batch)
        (self.online(batch) - goal).square().mean().backward()
        self.optimizer.step()
        self.sync()
"""


def test_models_of_one_wrap_load_full_state_behind_a_reshard() -> None:
    analysis, results = analyse_texts({"agent.py": _AGENT})
    text = "".join(results["agent.py"].split())
    assert "set_model_state_dict(self.target,get_model_state_dict(self.online" in text
    assert "formoduleinself.target.modules():ifisinstance(module,FSDPModule):module.reshard()" in text
    assert text.index("module.reshard()") < text.index("set_model_state_dict(self.target")
    assert [f.level.value for f in analysis.findings if f.rule == "FS403"] == ["review"]


def test_a_model_that_has_run_no_forward_needs_no_reshard() -> None:
    text = _AGENT.replace("        with torch.no_grad():\n            goal = self.target(batch)\n", "        goal = 0.0\n")
    text = text.replace("self.make(), self.make()", "self.make(), FSDP(build())")
    _, results = analyse_texts({"agent.py": text})
    assert "set_model_state_dict(" in results["agent.py"]
    assert "reshard()" not in results["agent.py"]
