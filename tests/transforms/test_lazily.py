"""State that is computed later than it is written: lazy maps and generators that some ranks alone iterate."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

_TEXT = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def state_of(net):
    return net.module.state_dict()


def every_state(nets):
    for net in nets:
        yield net.module.state_dict()


nets = [DDP(build(), broadcast_buffers=False), DDP(build(), broadcast_buffers=False)]
states = {states}
if dist.get_rank() == 0:
    torch.save(list(states), "states.pt")
"""


@pytest.mark.parametrize(
    "states",
    [
        "map(lambda net: net.module.state_dict(), nets)",
        "map(state_of, nets)",
        "(net.module.state_dict() for net in nets)",
        "enumerate(net.module.state_dict() for net in nets)",
        "every_state(nets)",
    ],
)
def test_iterated_behind_a_guard_it_holds_the_models(states: str) -> None:
    text = _TEXT.format(states=states)
    analysis, results = analyse_texts({"train.py": text})
    assert results["train.py"] == text
    found = [finding for finding in analysis.findings if finding.rule == "FS402"]
    assert any(f.level is Level.MANUAL and "where it is iterated" in f.message for f in found)


@pytest.mark.parametrize(
    "states",
    [
        "list(map(state_of, nets))",
        "[net.module.state_dict() for net in nets]",
        "list(every_state(nets))",
        "tuple(net.module.state_dict() for net in nets)",
    ],
)
def test_taken_into_a_list_it_is_gathered_on_all_ranks(states: str) -> None:
    analysis, results = analyse_texts({"train.py": _TEXT.format(states=states)})
    assert "get_model_state_dict(" in results["train.py"]
    assert not any("where it is iterated" in finding.message for finding in analysis.findings)
