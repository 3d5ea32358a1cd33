"""What holds a model's parameters when it is wrapped gets the sharded ones; what only looked at them does not."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = """
class Average:
    def __init__(self, parameters):
        self.kept = list(parameters)


def groups_of(net):
    decay, rest = [], []
    for name, p in net.named_parameters():
        (rest if name.endswith("bias") else decay).append(p)
    return [{{"params": decay}}, {{"params": rest}}]


def weights_of(net):
    return [m.weight for m in net.modules() if isinstance(m, nn.Linear)]


def count(net):
    return sum(p.numel() for p in net.parameters() if p.requires_grad)


def main():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    {before}
    model = DDP(net)
    {after}
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


main()
"""

BUILT = "optimizer = torch.optim.SGD(model.parameters())"


def is_rebound(before: str, after: str) -> bool:
    new = migrated(train=HEAD + PROGRAM.format(before=before, after=after))["train"]
    assert "fully_shard(net)" in new
    return "with rebound_parameters(net):" in new


@pytest.mark.parametrize(("before", "after"), [
    ("groups = groups_of(net)", "optimizer = torch.optim.SGD(groups)"),
    ("params = [p for p in net.parameters() if p.requires_grad]", "optimizer = torch.optim.SGD(params)"),
    ("average = Average(net.parameters())", BUILT),
    ("table = {n: p for n, p in net.named_parameters()}", BUILT),
    ("weights = weights_of(net)", BUILT),
    ("views = [p.data for p in net.parameters()]", BUILT),
    ("optimizer = torch.optim.SGD(net.parameters())", ""),
])  # fmt: skip
def test_what_holds_them_is_given_the_sharded_ones(before: str, after: str) -> None:
    assert is_rebound(before, after)


@pytest.mark.parametrize(("before", "after"), [
    ("print(count(net))", BUILT),
    ("for p in net.parameters():\n        p.requires_grad = True\n        nn.init.normal_(p)", BUILT),
    ("device = next(net.parameters()).device", BUILT),
    ("shapes = {n: tuple(p.shape) for n, p in net.named_parameters()}", BUILT),
    ("copies = [p.detach().clone() for p in net.parameters()]", BUILT),
    ("", "optimizer = torch.optim.SGD(groups_of(net))"),
    ("", "average = Average(net.parameters())\n    " + BUILT),
])  # fmt: skip
def test_what_only_looks_at_them_needs_nothing(before: str, after: str) -> None:
    assert not is_rebound(before, after)
