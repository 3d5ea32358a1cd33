"""inference_mode around a first forward spoils what FSDP2 gathers; behind a training step it stays."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

_HEAD = """\
import torch
from torch import inference_mode
from torch.nn.parallel import DistributedDataParallel as DDP

torch.cuda.set_device(0)
model = DDP(torch.nn.Linear(8, 8), device_ids=[0])
optimizer = torch.optim.AdamW(model.parameters())


def train(model):
    for batch in batches:
        model(batch).sum().backward()
        optimizer.step()


"""
_LATER = _HEAD + """\
@torch.inference_mode()
def evaluate(model):
    return model(held_out)


"""


def _migrated(text: str) -> tuple[set[str], str]:
    """(what FS317 says by first words, the new text)"""
    analysis, results = analyse_texts({"train.py": text})
    assert "fully_shard(model)" in results["train.py"]
    return {f.message.split()[0] for f in analysis.findings if f.rule == "FS317"}, results["train.py"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("with torch.inference_mode():", "with torch.no_grad():"),
        ("with inference_mode():", "with torch.no_grad():"),
        ("with torch.inference_mode(True):", "with torch.no_grad():"),
        ("with torch.inference_mode(mode=frozen):", "with torch.set_grad_enabled(not frozen):"),
        ("with torch.inference_mode(a or b):", "with torch.set_grad_enabled(not (a or b)):"),
    ],
)
def test_a_first_forward_takes_no_grad(before: str, after: str) -> None:
    said, text = _migrated(f"{_HEAD}{before}\n    print(model(held_out))\ntrain(model)\n")
    assert said == {"the"}
    assert after in text
    assert "inference_mode(" not in text


@pytest.mark.parametrize("decorator", ["@torch.inference_mode()", "@torch.inference_mode"])
def test_decorators_keep_their_form(decorator: str) -> None:
    _, text = _migrated(_LATER.replace("@torch.inference_mode()", decorator) + "evaluate(model)\ntrain(model)\n")
    assert decorator.replace("inference_mode", "no_grad") + "\ndef evaluate" in text


@pytest.mark.parametrize(
    "calls",
    [
        "for epoch in range(3):\n    train(model)\n    evaluate(model)\n",
        "for epoch in range(3):\n    train(model)\n    if epoch % 2:\n        evaluate(model)\n",
        "def main():\n    if only:\n        evaluate(model)\n        return\n    train(model)\n    evaluate(model)\n\n\nmain()\n",
    ],
)
def test_evaluations_behind_training_stay(calls: str) -> None:
    said, text = _migrated(_LATER + calls)
    assert not said
    assert "@torch.inference_mode()" in text


@pytest.mark.parametrize(
    "calls",
    [
        "for epoch in range(3):\n    evaluate(model)\n    train(model)\n",
        "for epoch in range(3):\n    if epoch in chosen:\n        train(model)\n    evaluate(model)\n",
        "def run(only):\n    if only:\n        evaluate(model)\n        return\n    train(model)\n\n\nrun(True)\nrun(False)\n",
    ],
)
def test_evaluations_that_may_come_first_change(calls: str) -> None:
    said, text = _migrated(_LATER + calls)
    assert said == {"the"}
    assert "@torch.no_grad()" in text


def test_other_methods_gather_as_well() -> None:
    net = """\
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def encode(self, x):
        return self.layer(x)


"""
    text = _HEAD.replace("torch.cuda.set", net + "torch.cuda.set").replace("torch.nn.Linear(8, 8)", "Net()")
    said, after = _migrated(f"{text}with torch.inference_mode():\n    print(model.module.encode(held_out))\ntrain(model)\n")
    assert said == {"the"}
    assert "with torch.no_grad():\n    print(model.encode(held_out))" in after


def test_contexts_that_are_chosen_are_named() -> None:
    text = f"{_HEAD}context = torch.inference_mode if fast else torch.no_grad\nwith context():\n    print(model(held_out))\n"
    said, after = _migrated(text)
    assert said == {"what"}
    assert "torch.inference_mode if fast" in after


def test_models_that_nothing_trains_are_left_alone() -> None:
    text = _HEAD.replace(".backward()", "") + "with torch.inference_mode():\n    print(model(held_out))\ntrain(model)\n"
    assert not _migrated(text)[0]


def test_models_of_fsdp1_raised_before() -> None:
    text = f"{_HEAD}with torch.inference_mode():\n    print(model(held_out))\ntrain(model)\n"
    text = text.replace("torch.nn.parallel import DistributedData", "torch.distributed.fsdp import FullyShardedData")
    assert not _migrated(text.replace("device_ids=[0]", "device_id=0"))[0]
