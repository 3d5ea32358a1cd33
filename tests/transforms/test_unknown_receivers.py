"""Receivers of which nothing is known: whoever passes them may pass the model, or a data set, or a tokenizer."""

from __future__ import annotations

from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, **things):
        self.model = things["model"]
        self.loader = things["loader"]
        self.tokenizer = things["tokenizer"]
        for name, child in self.model.named_children():
            setattr(self.model, name, FSDP(child))
        self.inner = FSDP(self.model.inner)

    def restore(self, state):
        self.loader.dataset.load_state_dict(state["data"])
        self.tokenizer.save_pretrained("tokenizer")

    def snapshot(self):
        return self.model.inner.state_dict()


def run(things):
    trainer = Trainer(**things)
    trainer.restore(torch.load("state.pt"))
    torch.save(trainer.snapshot(), "model.pt")
"""


def test_only_what_is_called_a_model_is_taken_for_one() -> None:
    analysis, results = analyse_texts({"train.py": PROGRAM})
    text = results["train.py"]
    assert 'self.loader.dataset.load_state_dict(state["data"])' in text
    assert 'self.tokenizer.save_pretrained("tokenizer")' in text
    assert not [f for f in analysis.findings if "pretrained" in f.symbol or "load_state_dict" in f.symbol]


def test_a_receiver_that_may_be_anything_is_never_surely_the_model() -> None:
    analysis, _ = analyse_texts({"train.py": PROGRAM})
    uses = [f for f in analysis.findings if f.symbol.endswith(".state_dict")]
    assert all(finding.level is not Level.SAFE for finding in uses)


def test_a_model_is_found_in_the_dictionary_of_an_object() -> None:
    program = """
class Trainer:
    def __init__(self, net):
        self.wrapped = DDP(net)

    def __getattr__(self, name):
        return getattr(self.__dict__["wrapped"].module, name)
"""
    text = "from torch.nn.parallel import DistributedDataParallel as DDP\n" + program
    _, results = analyse_texts({"train.py": text})
    assert 'getattr(self.__dict__["wrapped"], name)' in results["train.py"]
