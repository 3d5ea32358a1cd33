"""Models that are scripted before they are wrapped: told, since fully_shard raises for them."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, findings
from to_fsdp2.transforms.findings import Level

PROGRAM = HEAD + """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)


def build(jit):
    net = Net()
    {made}
    return net


def main(args):
    model = build(args.jit)
    {wrapped}
    return DDP(model, device_ids=[0])
"""


@pytest.mark.parametrize(
    ("made", "wrapped", "is_told"),
    [
        ("net = torch.jit.script(net) if jit else net", "pass", True),
        ("if jit:\n        net = torch.jit.script(net)", "pass", True),
        ("if jit:\n        return torch.jit.script(net)", "pass", True),
        ("pass", "if args.jit:\n        model = torch.jit.script(model)", True),
        ("exported = torch.jit.script(net)", "pass", False),
    ],
)
def test_what_builds_or_wraps_a_model_may_script_it(made: str, wrapped: str, is_told: bool) -> None:
    found = [f for f in findings(train=PROGRAM.format(made=made, wrapped=wrapped)) if f.rule == "FS120"]
    assert [f.level for f in found if "scripted" in f.message] == ([Level.MANUAL] if is_told else [])
