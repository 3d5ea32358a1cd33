"""Files that name no wrapper and are rewritten for what they call."""

from __future__ import annotations

from migrating import analyse_texts


def test_a_call_in_a_file_that_names_no_wrapper_hands_in_what_is_gathered() -> None:
    trainer = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

from callbacks import Save


class Trainer:
    def __init__(self, net):
        self.model = DDP(net)
        self.callbacks = [Save()]

    def state(self):
        return {"model": self.model.module.state_dict()}

    def fit(self):
        for callback in self.callbacks:
            callback.on_end(self)


Trainer(torch.nn.Linear(2, 2)).fit()
"""
    callbacks = """\
import torch
import torch.distributed as dist


class Save:
    def on_end(self, trainer):
        if dist.get_rank() == 0:
            torch.save(trainer.state(), "x.pt")
"""
    _, results = analyse_texts({"train.py": trainer, "callbacks.py": callbacks})
    assert "def state(self, model_state_dict):" in results["train.py"]
    gathered, _, guarded = results["callbacks.py"].partition("        if dist.get_rank() == 0:\n")
    assert "get_model_state_dict(" in gathered
    assert "trainer.state(model_state_dict=model_state_dict)" in guarded


def test_a_number_is_read_off_parameters_of_the_unwrapped_model_in_another_file() -> None:
    train = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

from report import say

net = torch.nn.Linear(2, 2)
model = DDP(net)
for p in net.parameters():
    say(p.norm())
"""
    report = """\
def say(value):
    print(float(value))
"""
    _, results = analyse_texts({"train.py": train, "report.py": report})
    assert "value.full_tensor()" in results["report.py"]
