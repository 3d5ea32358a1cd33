"""Models that a function has taken out of DDP's wrapper before they are saved."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PEELED = HEAD + """def peel(net, average):
    if isinstance(net, DDP):
        inner = net.module
    else:
        inner = net
    if average is not None:
        other = average.module if isinstance(average, DDP) else average
    else:
        other = None
    return inner, other


def save(net, average):
    net, average = {given}
    torch.save(net.state_dict(), "last.pt")


save(DDP(nn.Linear(2, 2)), DDP(nn.Linear(2, 2)))
"""


@pytest.mark.parametrize(("given", "saved"), [("peel(net, average)", "net.state_dict()"), ("net, average", "model_state(net)")])
def test_items_of_a_tuple_that_a_function_unwraps(given: str, saved: str) -> None:
    assert f"torch.save({saved}, " in migrated(train=PEELED.format(given=given))["train"]
