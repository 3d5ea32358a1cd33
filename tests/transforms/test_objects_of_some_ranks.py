"""Objects that only some ranks make: what their methods do with the model, these ranks do alone."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

PROGRAM = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Listener:
    def on_end(self, model):
        pass


class Saver(Listener):
    def __init__(self, path="a.pt"):
        self.path = path

    def on_end(self, model):
        torch.save(model.module.state_dict(), self.path)


def emit(listeners, name, *args):
    for listener in listeners:
        getattr(listener, f"on_{{name}}")(*args)


def main(net, batches):
    rank = dist.get_rank()
    model = DDP(net)
    for batch in batches:
        model(batch).sum().backward()
    {made}
    {used}
"""
EMIT = 'emit(listeners, "end", model)'


def outcome(made: str, used: str) -> tuple[Level, str]:
    analysis, results = analyse_texts({"train.py": PROGRAM.format(made=made, used=used)})
    (found,) = [f for f in analysis.findings if f.rule == "FS402"]
    return found.level, results["train.py"]


@pytest.mark.parametrize(
    "made",
    [
        "listeners = [Saver()] if rank == 0 else []",
        "listeners = []\n    if rank == 0:\n        listeners.append(Saver())",
        "listeners = [] if rank != 0 else [Saver(), Listener()]",
    ],
)
def test_what_their_methods_gather_holds_the_model(made: str) -> None:
    level, text = outcome(made, EMIT)
    assert level is Level.MANUAL
    assert "fully_shard" not in text


@pytest.mark.parametrize(
    "made",
    [
        "listeners = [Saver()]",
        'listeners = [Saver("a.pt")] if rank == 0 else [Saver("b.pt")]',
        "listeners = [Saver()]\n    if rank == 0:\n        listeners.append(Listener())",
    ],
)
def test_objects_of_all_ranks_gather_where_they_are(made: str) -> None:
    level, text = outcome(made, EMIT)
    assert level in (Level.SAFE, Level.REVIEW)
    assert "get_model_state_dict(" in text.partition("class Saver")[2].partition("def emit")[0]


def test_a_call_behind_a_guard_of_its_own_is_handed_the_state() -> None:
    level, text = outcome("saver = Saver() if rank == 0 else None", "if saver:\n        saver.on_end(model)")
    assert level is not Level.MANUAL
    head, _, tail = text.partition("saver = Saver()")
    assert "get_model_state_dict(" not in head
    assert tail.index("get_model_state_dict(") < tail.index("if saver:")
