"""Library functions that take parameters away from modules and give them others."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings
from to_fsdp2.transforms.findings import Level


@pytest.mark.parametrize(("before", "behind", "levels"), [
    ("pass", 'prune.remove(model.module.layer, "weight")', [Level.MANUAL]),
    ("targets = read_targets(net)", "for part, name in targets:\n        prune.remove(part, name)", [Level.REVIEW]),
    ('prune.remove(net.layer, "weight")', "pass", []),
    ("pass", "last = nn.utils.weight_norm(nn.Linear(2, 2))", []),
    ("other = nn.Linear(2, 2)", 'prune.remove(other, "weight")', []),
])  # fmt: skip
def test_what_fully_shard_would_not_know_of_is_told(before: str, behind: str, levels: list[Level]) -> None:
    program = HEAD + (
        "from targets import read_targets\nfrom torch.nn.utils import prune\n\n\n"
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.layer = nn.Linear(2, 2)\n\n\n"
        f"def main():\n    net = Net()\n    {before}\n    model = nn.parallel.DistributedDataParallel(net)\n    {behind}\n\n\n"
        "main()\n"
    )
    assert [finding.level for finding in findings(train=program) if finding.rule == "FS419"] == levels
