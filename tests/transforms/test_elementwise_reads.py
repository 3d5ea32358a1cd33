"""What an optimizer of the repository takes of a tensor to compute with stays on shards; a number that it reads does not."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = HEAD + """class Own(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                {read}
                state = self.state[p]
                state.setdefault("m", torch.zeros_like(p))
                state["m"].mul_(0.9).add_(p.grad)
                p.data.add_(state["m"], alpha=-0.1)


def main(net, batches):
    model = DDP(net)
    optimizer = Own(model.parameters(), {{}})
    for x in batches:
        model(x).sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("read", "new"),
    [
        ("values = p.data.float()", "values = p.data.float()"),
        ("grad = p.grad.data.double()", "grad = p.grad.data.double()"),
        ("size = p.grad.abs().max().item()", "size = whole(p.grad).abs().max().item()"),
    ],
)
def test_working_copies_are_of_shards(read: str, new: str) -> None:
    assert f"                {new}\n" in migrated(train=PROGRAM.format(read=read))["train"]
