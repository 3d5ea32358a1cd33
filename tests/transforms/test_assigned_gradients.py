"""Gradients that the program assigns: a collective on them is one on a parameter's gradient, whatever was assigned."""

from __future__ import annotations

from migrated_texts import HEAD, migrated

PROGRAM = HEAD + """import torch.distributed as dist


def main(batches):
    model = DDP(nn.Linear(4, 4))
    for x in batches:
        parameters = list(model.parameters())
        own = torch.autograd.grad(model(x).sum(), parameters)
        for p, gradient in zip(parameters, own):
            p.grad = gradient
            dist.all_reduce(p.grad)


main([torch.ones(2, 4)])
"""


def test_collectives_on_assigned_gradients() -> None:
    assert "on_whole(dist.all_reduce)(p.grad)" in migrated(train=PROGRAM)["train"]
