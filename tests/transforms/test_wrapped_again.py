"""Models that DDP is put around more than once: the second time they are sharded already."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

LOOP = """
def main():
    net = nn.Linear(4, 4)
    for phase in range(2):
        {made}
        model = DDP(net)
        model(torch.ones(2, 4)).sum().backward()


main()
"""
PHASES = """
def main():
    net = nn.Linear(4, 4)
    first = DDP(net)
    first(torch.ones(2, 4)).sum().backward()
    {made}
    second = DDP(net)
    second(torch.ones(2, 4)).sum().backward()


main()
"""


@pytest.mark.parametrize("program", [LOOP, PHASES])
def test_wrapped_anew(program: str) -> None:
    again = migrated(train=HEAD + program.format(made="net.requires_grad_(True)"))["train"]
    assert "shard_like_ddp(net)" in again and "    fully_shard(net)" not in again
    anew = migrated(train=HEAD + program.format(made="net = nn.Linear(4, 4)"))["train"]
    if program is LOOP:
        assert "fully_shard(net)" in anew and "shard_like_ddp" not in anew
    else:  # the same lines twice are harder to read
        assert anew.count(" = shard_like_ddp(net)") == 2


def test_models_of_a_loop_are_wrapped_once_each() -> None:
    program = """
def main():
    nets = [nn.Linear(4, 4), nn.Linear(4, 2)]
    models = []
    for net in nets:
        models.append(DDP(net))
    models[0](torch.ones(2, 4)).sum().backward()


main()
"""
    assert "shard_like_ddp(net)" in migrated(train=HEAD + program)["train"]


CALLED = """
def wrap(net):
    return DDP(net)


def main():
    net = nn.Linear(4, 4)
    model = {first}
    model(torch.ones(2, 4)).sum().backward()
    {made}
    model = {second}
    model(torch.ones(2, 4)).sum().backward()


main()
"""


@pytest.mark.parametrize(("first", "second"), [("wrap(net)", "wrap(net)"), ("wrap(net)", "DDP(net)")])
def test_a_function_that_wraps_what_several_callers_hand_in(first: str, second: str) -> None:
    again = migrated(train=HEAD + CALLED.format(first=first, second=second, made="net.requires_grad_(True)"))["train"]
    assert "shard_like_ddp(net)" in again and "    fully_shard(net)" not in again
    anew = migrated(train=HEAD + CALLED.format(first=first, second=second, made="net = nn.Linear(4, 4)"))["train"]
    assert "fully_shard(net)" in anew and "shard_like_ddp" not in anew
