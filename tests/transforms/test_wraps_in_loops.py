"""Wraps that take one entry of a table after another, and models that are frozen behind their wrap."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Finding, Level

_HEAD = "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
_NET = """\
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)


"""


def wraps(body: str) -> list[Finding]:
    """What is said of the wraps of a program."""
    analysis, _ = analyse_texts({"train.py": _HEAD + body})
    return [finding for finding in analysis.findings if finding.rule == "FS120"]


@pytest.mark.parametrize(
    "loop",
    [
        "for name, module in table.items():\n        table[name] = DDP(module, broadcast_buffers=False)",
        "for name in table:\n        table[name] = DDP(table[name], broadcast_buffers=False)",
        "for name, module in table.items():\n        if flag:\n            module = DDP(module, broadcast_buffers=False)",
        "return [DDP(module, broadcast_buffers=False) for module in table]",
    ],
)
def test_entries_of_an_unseen_table_may_hold_each_other(loop: str) -> None:
    (found,) = wraps(f"def wrap(table, flag):\n    {loop}\n")
    assert found.level is Level.REVIEW
    assert "what an earlier turn of the loop has sharded stays sharded" in found.message and "ModuleList" in found.message
    assert "register_fsdp_forward_method" in found.message


@pytest.mark.parametrize(
    "body",
    [
        _NET + "nets = [Net(), Net()]\nfor i, net in enumerate(nets):\n    nets[i] = DDP(net)\n",
        "def wrap(model, flags):\n    for flag in flags:\n        if flag:\n            return DDP(model)\n",
    ],
)
def test_models_that_are_seen_and_loops_over_other_things_are_not_named(body: str) -> None:
    assert not any("earlier turn" in found.message for found in wraps(body))


_SHELL = """\
class Shell:
    def __init__(self, parts, freeze):
        self.parts = parts
        self.wrap()
        if freeze:
            {freeze}

    def wrap(self):
        for name, part in self.parts.items():
            part = DDP(part, broadcast_buffers=False)
            self.parts[name] = part
"""


@pytest.mark.parametrize(
    ("freeze", "named"),
    [
        ("for p in self.parts.parameters():\n                p.requires_grad = False", True),
        ("for p in self.parts.parameters():\n                p.requires_grad_(False)", True),
        ("self.parts.requires_grad_(False)", True),
        ("self.parts.requires_grad_(parts.trains)", False),
        ("self.parts.head.requires_grad_(False)", False),
        ("for p in self.parts.parameters():\n                if p.dim():\n                    p.requires_grad = False", False),
    ],
)
def test_what_is_frozen_behind_its_wrap_gains_nothing(freeze: str, named: bool) -> None:
    (found,) = wraps(_SHELL.format(freeze=freeze))
    assert ("for inference alone sharding brings nothing" in found.message) == named
    assert ("leave fully_shard out" in found.advice) == named


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ("net = DDP(net)\nnet.requires_grad_(False)\n", True),
        ("net.requires_grad_(False)\nnet = DDP(net)\n", False),
        ("net = DDP(net)\nnet.requires_grad_(False)\nplay(net)\nnet.requires_grad_(True)\n", False),
    ],
)
def test_only_what_stays_frozen_behind_the_wrap_counts(lines: str, named: bool) -> None:
    (found,) = wraps(_NET + "net = Net()\n" + lines)
    assert ("for inference alone sharding brings nothing" in found.message) == named


@pytest.mark.parametrize(
    "body",
    [
        "parts = torch.nn.ModuleList([torch.nn.Linear(2, 2)])\nparts = DDP(parts)\n",
        'parts = {"a": torch.nn.Linear(2, 2), "b": torch.nn.ModuleDict()}\n'
        "for name, part in parts.items():\n    parts[name] = DDP(part)\n",
    ],
)
def test_containers_of_modules_are_left_to_a_person(body: str) -> None:
    (found,) = wraps(body)
    assert found.level is Level.MANUAL
    assert "which fully_shard refuses with a ValueError" in found.message
