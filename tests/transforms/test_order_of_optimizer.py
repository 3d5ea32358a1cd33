"""Optimizers built before the wrap: moves that are sound, and those that are not."""

from __future__ import annotations

import pytest
from migrating import analyse_texts
from to_fsdp2.transforms.findings import Level

HEAD = "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n\n"
OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
WRAP = "model = DDP(model, broadcast_buffers=False)\n"


def migrate(body: str) -> tuple[str, set[Level]]:
    analysis, results = analyse_texts({"train.py": HEAD + body})
    return results["train.py"], {finding.level for finding in analysis.findings if finding.rule == "FS501"}


def places(text: str, *pieces: str) -> list[int]:
    assert all(piece in text for piece in pieces), text
    return [text.index(piece) for piece in pieces]


def test_the_sharding_moves_up_with_its_comment() -> None:
    text, levels = migrate(f"model = build()\n\n# train\n{OPTIMIZER}\n# wrap\nif ddp:\n    {WRAP}\nrun()\n")
    found = places(text, "model = build()", "# wrap", "fully_shard(model)", "# train", "optimizer =", "run()")
    assert found == sorted(found)
    assert levels == {Level.SAFE}


def test_the_optimizer_moves_below_a_device_move() -> None:
    text, _ = migrate(
        f"model = build()\n{OPTIMIZER}scheduler = Scheduler(optimizer)\nmodel.to(device)\n{WRAP}run(optimizer)\n"
    )
    found = places(text, "model.to(device)", "fully_shard(model)", "optimizer =", "scheduler =", "run(optimizer)")
    assert found == sorted(found)


def test_parameters_collected_before_the_wrap_move_too() -> None:
    text, _ = migrate(
        f"model = build()\ngroups = [p for p in model.parameters()]\n{WRAP}"
        "optimizer = torch.optim.SGD(groups, lr=0.1)\n"
    )
    found = places(text, "fully_shard(model)", "groups =", "optimizer =")
    assert found == sorted(found)


def test_an_optimizer_in_a_method_is_found() -> None:
    text, _ = migrate(
        "class Trainer:\n    def __init__(self, model):\n        self.model = model\n"
        "        self.optimizer = self.make()\n"
        "        self.model = DDP(self.model)\n\n    def make(self):\n"
        "        return torch.optim.SGD(self.model.parameters(), lr=0.1)\n\n\nTrainer(build())\n"
    )
    found = places(text, "fully_shard(self.model)", "self.optimizer = self.make()")
    assert found == sorted(found)


@pytest.mark.parametrize(
    "between",
    [
        "model, optimizer = amp.initialize(model, optimizer)\n",
        "model = quantize(model, optimizer)\n",
        "if resume(optimizer):\n    model.load_state_dict(weights)\n",
    ],
)
def test_what_needs_both_before_the_wrap_holds_the_group(between: str) -> None:
    body = f"model = build()\n{OPTIMIZER}{between}{WRAP}"
    text, levels = migrate(body)
    assert text == HEAD + body
    assert levels == {Level.MANUAL}


def test_different_functions_with_no_common_block_hold_the_group() -> None:
    body = (
        "class Trainer:\n    def __init__(self, model, optimizer):\n        self.optimizer = optimizer\n"
        "        self.model = DDP(model)\n\n\n"
        f"model = build()\n{OPTIMIZER}Trainer(model, optimizer)\n"
    )
    text, levels = migrate(body)
    assert text == HEAD + body
    assert levels == {Level.MANUAL}


def test_the_right_order_is_left_alone() -> None:
    text, levels = migrate(f"model = build()\n{WRAP}{OPTIMIZER}")
    assert text.endswith(f"fully_shard(model)\n{OPTIMIZER}")
    assert not levels


def test_optimizers_that_outside_code_builds_count() -> None:
    text, levels = migrate(
        f"from timm.optim import create_optimizer\n\nmodel = build()\noptimizer = create_optimizer(args, model)\n{WRAP}"
    )
    found = places(text, "model = build()", "fully_shard(model)", "optimizer =")
    assert found == sorted(found)
    assert levels == {Level.SAFE}


def test_the_sharding_does_not_move_before_its_process_group() -> None:
    text, _ = migrate(
        "def prepare():\n    torch.distributed.init_process_group('nccl')\n\n\n"
        f"model = build()\n{OPTIMIZER}prepare()\n{WRAP}"
    )
    found = places(text, "prepare()\nfor", "fully_shard(model)", "optimizer =")
    assert found == sorted(found)


def test_averages_from_before_the_sharding_are_for_a_person() -> None:
    body = f"from torch.optim.swa_utils import AveragedModel\n\nmodel = build()\nema = AveragedModel(model)\n{WRAP}"
    text, _ = migrate(body)
    assert text == HEAD + body


REFILLED = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(2, 2)


def shard(model, optimizer):
    settings = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    optimizer.param_groups.clear()
    optimizer.state.clear()
    model.body = FSDP(model.body)
    optimizer.param_groups.clear()
    optimizer.add_param_group({"params": list(model.parameters()), **settings})


def main():
    model = Net()
    optimizer = torch.optim.SGD(model.body.parameters(), lr=0.1)
    shard(model, optimizer)
    return model, optimizer
"""


def test_groups_that_are_filled_again_behind_the_wrap_hold_the_sharded_parameters() -> None:
    analysis, results = analyse_texts({"train.py": REFILLED})
    assert "fully_shard(model.body)" in results["train.py"]
    assert not [f for f in analysis.findings if f.rule == "FS501"]
    never = REFILLED.replace("    optimizer.add_param_group", "    other.add_param_group")
    analysis, _ = analyse_texts({"train.py": never})
    assert any(f.rule == "FS501" for f in analysis.findings)
