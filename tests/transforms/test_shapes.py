"""Tests of the shapes of parameters, which FSDP1 showed flat outside of forwards."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings


@pytest.mark.parametrize(("body", "told"), [
    ("return x if x.dim() > 2 else self.scale", False),
    ("return self.scale if self.scale.dim() > 1 else x", False),
    ("return [p for p in self.parameters() if p.dim() > 1]", True),
])  # fmt: skip
def test_shapes_are_told_of_where_fsdp1_showed_them_flat(body: str, told: bool) -> None:
    program = HEAD + (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.scale = nn.Parameter(torch.ones(2))\n\n"
        f"    def compute(self, x):\n        {body}\n\n    def forward(self, x):\n        return self.compute(x)\n\n\n"
        "def main(net):\n    model = FSDP(Net())\n    model.compute(model.scale)\n"
    )
    assert any(finding.rule == "FS706" for finding in findings(train=program)) == told


@pytest.mark.parametrize(("wrapper", "before", "told"), [
    ("FSDP", "count = sum(p.numel() for p in model.parameters())", True),
    ("FSDP", "with FSDP.summon_full_params(model):\n        count = sum(p.numel() for p in model.parameters())", False),
    ("nn.parallel.DistributedDataParallel", "count = sum(p.numel() for p in model.parameters())", False),
])  # fmt: skip
def test_counts_of_a_ranks_own_part_are_told_of(wrapper: str, before: str, told: bool) -> None:
    program = HEAD + (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
        "def main(net):\n    print(sum(p.numel() for p in net.parameters()))\n"
        f"    model = {wrapper}(net)\n    {before}\n    return count\n"
    )
    assert any(finding.rule == "FS706" for finding in findings(train=program)) == told
