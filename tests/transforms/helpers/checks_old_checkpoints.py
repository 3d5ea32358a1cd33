# pyright: reportPrivateImportUsage=false
"""Files that FSDP1, DDP and sharded models write, read by each other in new processes. Run by test_old_checkpoints.py."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dist_cp
from checks_optimizer_state import FULL, LOCAL, SHARDED, pair, same, train
from to_fsdp2.transforms.helpers import named_optimizer_state as named
from to_fsdp2.transforms.helpers.old_checkpoints import load_sharded_optimizer_state
from to_fsdp2.transforms.helpers.optimizer_state import load_optimizer_state, optimizer_state
from to_fsdp2.transforms.helpers.state import load_model_state, model_state
from to_fsdp2.transforms.helpers.state_kinds import set_state_dict_type, state_dict_type
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, ShardedOptimStateDictConfig

FOLDER = tempfile.mkdtemp()  # by the process that both ranks of every check are forked from
atexit.register(shutil.rmtree, FOLDER, True)
SAVE, LOAD = dist_cp.save_state_dict, dist_cp.load_state_dict


def sharded_save(kind: str, frozen: bool = False) -> None:
    """A program as it was written for FSDP1, with the helpers in place of FSDP1's functions."""
    model, optimizer = pair(kind, frozen=frozen)
    with state_dict_type(model, SHARDED, None, ShardedOptimStateDictConfig(offload_to_cpu=False)):
        state = {"model": model_state(model), "optim": named.optim_state_dict(model, optimizer), "step": 2}
        SAVE(state, dist_cp.FileSystemWriter(f"{FOLDER}/{kind}"), planner=dist_cp.DefaultSavePlanner())


def sharded_load(kind: str, path: str) -> tuple[Any, Any]:
    model, optimizer = pair(kind, steps=0)
    reader = dist_cp.FileSystemReader(f"{FOLDER}/{path}")
    with state_dict_type(model, SHARDED):
        state = {"model": model_state(model), "step": 0}
        LOAD(state, reader, planner=dist_cp.DefaultLoadPlanner())
        load_model_state(model, state["model"])
        read = load_sharded_optimizer_state(state["model"], "optim", reader)
        load_optimizer_state(optimizer, named.optim_state_dict_to_load(model, optimizer, read["optim"]))
    assert state["step"] == 2
    return model, optimizer


def check_1_sharded_saves() -> None:
    for kind in ("fsdp1", "flat", "fsdp2"):
        sharded_save(kind)


def check_2_sharded_loads() -> None:
    expected = train(*pair("fsdp1"), 2, 5)
    for kind, path in (("fsdp2", "fsdp1"), ("fsdp2", "flat"), ("fsdp2", "fsdp2"), ("fsdp1", "fsdp2")):
        model, optimizer = sharded_load(kind, path)
        assert train(model, optimizer, 2, 5) == expected, (kind, path)


def full_save(kind: str) -> None:
    """What rank 0 writes: FSDP1's full state by name, or a DDP program's."""
    model, optimizer = pair(kind)
    if kind == "ddp":
        state = {"model": model.state_dict(), "optim": optimizer.state_dict()}
    else:
        set_state_dict_type(model, FULL, FullStateDictConfig(False, True), FullOptimStateDictConfig(False, True))
        state = {"model": model_state(model), "optim": named.optim_state_dict(model, optimizer)}
    if dist.get_rank() == 0:
        torch.save(state, f"{FOLDER}/{kind}.pt")
    dist.barrier()


def check_3_full_saves() -> None:
    for kind in ("ddp", "fsdp1", "flat", "fsdp2"):
        full_save(kind)


def check_4_full_loads() -> None:
    expected = train(*pair("fsdp1"), 2, 5)
    for kind, path in (("fsdp2", "ddp"), ("fsdp2", "fsdp1"), ("fsdp2", "flat"), ("fsdp2", "fsdp2"), ("fsdp1", "fsdp2")):
        model, optimizer = pair(kind, steps=0)
        state = torch.load(f"{FOLDER}/{path}.pt", weights_only=True)
        load_model_state(model, state["model"])
        if path != "ddp":
            set_state_dict_type(model, FULL, None, FullOptimStateDictConfig(rank0_only=True))
            given = state["optim"] if dist.get_rank() == 0 else {}
            state["optim"] = named.optim_state_dict_to_load(model, optimizer, given)
        load_optimizer_state(optimizer, state["optim"])
        assert train(model, optimizer, 2, 5) == expected, (kind, path)


def check_5_each_rank_saves_its_part() -> None:
    for kind in ("fsdp1", "fsdp2"):
        model, optimizer = pair(kind)
        with state_dict_type(model, SHARDED, None, ShardedOptimStateDictConfig(offload_to_cpu=False)):
            state = {"model": model_state(model), "optim": named.optim_state_dict(model, optimizer)}
        torch.save(state, f"{FOLDER}/{kind}.{dist.get_rank()}.pt")


def check_6_each_rank_loads_its_part() -> None:
    expected = train(*pair("fsdp1"), 2, 5)
    for path in ("fsdp2", "fsdp1"):
        state = torch.load(f"{FOLDER}/{path}.{dist.get_rank()}.pt", weights_only=False)
        model, optimizer = pair("fsdp2", steps=0)
        with state_dict_type(model, LOCAL):
            load_model_state(model, state["model"])
            load_optimizer_state(optimizer, named.optim_state_dict_to_load(model, optimizer, state["optim"]))
        assert train(model, optimizer, 2, 5) == expected, path


def check_7_groups_that_were_made_by_shape() -> None:
    def by_shape(kind: str) -> tuple[Any, Any]:
        model, _ = pair(kind, steps=0)
        groups = [{"params": [p for p in model.parameters() if (p.dim() > 1) is wide], "lr": 1e-2} for wide in (True, False)]
        return model, torch.optim.AdamW(groups, foreach=False)

    old, new = by_shape("fsdp1"), by_shape("fsdp2")
    train(*old, 0, 2)
    with state_dict_type(old[0], FULL, None, FullOptimStateDictConfig(False)):
        model, optimizer = model_state(old[0]), named.optim_state_dict(*old)
    assert not optimizer["param_groups"][0]["params"]
    load_model_state(new[0], model)
    new[1].load_state_dict(named.optim_state_dict_to_load(*new, optimizer))
    assert train(*new, 2, 5) == train(*old, 2, 5)
    assert same(optimizer_state(new[1])["state"].keys(), dict.fromkeys(range(14)).keys())
