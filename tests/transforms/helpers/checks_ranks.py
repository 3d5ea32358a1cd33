"""What ranks.py must do on two ranks. Run by test_ranks.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from models import batch, build, error_of
from to_fsdp2.transforms.helpers.agreement import true_on_any_rank
from to_fsdp2.transforms.helpers.ranks import on_all_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _get_default_store
from torch.distributed.fsdp import fully_shard


def step(model: Any, number: int) -> None:
    model(*batch(number)).backward()


def check_ranks_that_agree_are_left_alone() -> None:
    model = build("fsdp2")
    assert on_all_ranks(model, "wrap") is model
    for number in range(300):
        if number % 100 == 0:
            step(model, number)
        if number % 2 == dist.get_rank():
            time.sleep(0.002)
        on_all_ranks(model, f"site {number}")
    assert _get_default_store().num_keys() < 300, "old sites are forgotten"
    compiled = torch.compile(model, backend="eager")
    assert on_all_ranks(compiled, "site") is compiled
    for other in (build("plain"), build("ddp"), build("fsdp1"), None, 3):
        if dist.get_rank() == 0:
            assert on_all_ranks(other, "guarded") is other
    step(model, 1)


def check_what_is_true_on_one_rank_is_known_on_all() -> None:
    for answers, expected in (((True, False), True), ((False, True), True), ((False, False), False), ((3, None), True)):
        assert true_on_any_rank(answers[dist.get_rank()]) is expected


def check_replicas_may_go_their_own_ways() -> None:
    model = build("plain")
    fully_shard(model, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard")))
    on_all_ranks(model, "wrap")
    if dist.get_rank() == 0:
        with torch.no_grad():
            on_all_ranks(model, "guarded")(*batch(0))
    step(model, 0)


def said_by_the_second(first: Callable[[], object], second: Callable[[], object]) -> str:
    """Rank 0 does `first`; rank 1 does `second` later and returns what that raised."""
    store = _get_default_store()
    if dist.get_rank() == 0:
        first()
        store.set("rank 0 is there", "yes")
        return ""
    store.get("rank 0 is there")
    return str(error_of(second))


def check_the_second_rank_raises() -> None:
    model = build("fsdp2")
    on_all_ranks(model, "train.py:3 wrap")
    step(model, 0)
    said = said_by_the_second(lambda: on_all_ranks(model, "train.py:9 generate"), lambda: step(model, 1))
    if dist.get_rank() == 1:
        assert "forward of FSDPNet in training'" in said and "'train.py:9 generate'" in said, said
        assert len(said) < 200


def check_an_evaluation_is_no_training_step() -> None:
    model = build("fsdp2")
    on_all_ranks(model, "wrap")
    hook = next(iter(model._forward_pre_hooks.values()))  # the forward itself would wait for the other rank
    with torch.no_grad() if dist.get_rank() == 0 else torch.enable_grad():
        said = said_by_the_second(lambda: hook(model.eval(), ()), lambda: step(model, 0))
    if dist.get_rank() == 1:
        assert "in evaluation without gradients'" in said and "in training'" in said, said
