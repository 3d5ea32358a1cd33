"""Contexts of FSDP1 for full state dicts: which go, and what says instead what the state has to be."""

from __future__ import annotations

import pytest
from migrated_texts import migrated

PROGRAM = """import torch
from torch import nn
from torch.distributed.fsdp import (
    FullOptimStateDictConfig, FullStateDictConfig, FullyShardedDataParallel as FSDP, StateDictType,
)


def save(model, optimizer, other, path):
    config = FullStateDictConfig({config})
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, {configs}):
        {block}
    torch.save(1, path)


def main(path):
    model = FSDP(nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    save(model, optimizer, unknown, path)
"""
ALONE = "offload_to_cpu=True, rank0_only=True"
BY_NAME = "    states = full_optim_state_dict(model, {}optimizer, rank0_only=False)\n"
ON_CPU = "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))"


def saved(block: str, config: str = ALONE, configs: str = "config") -> str:
    program = PROGRAM.replace("{config}", config).replace("{configs}", configs).replace("{block}", block)
    return migrated(train=program)["train"]


@pytest.mark.parametrize(
    ("block", "after"),
    [
        ("state = model.state_dict()", f"    state = {ON_CPU}\n"),
        ("states = FSDP.optim_state_dict(model, optimizer)", BY_NAME.format("")),
        ("states = FSDP.optim_state_dict(model, optim=optimizer)", BY_NAME.format("optim=")),
        ("print(optimizer.state_dict()); state = model.state_dict()", f"state = {ON_CPU}\n"),
        ("model.load_state_dict(torch.load(path))", "    load_model_state(model, torch.load(path))\n"),
    ],
)
def test_a_context_for_full_state_goes(block: str, after: str) -> None:
    new = saved(block)
    assert after in new
    assert "state_dict_type(" not in new


@pytest.mark.parametrize(
    ("config", "configs", "after"),
    [
        ("offload_to_cpu=torch.cuda.is_available(), rank0_only=True", "config", "cpu_offload=True"),
        ("True, True", "config, FullOptimStateDictConfig(rank0_only=True)", "full_optim_state_dict(model, optimizer)"),
        ("", "config", "StateDictOptions(full_state_dict=True))"),
    ],
)
def test_what_a_configuration_asks_for(config: str, configs: str, after: str) -> None:
    new = saved("states = model.state_dict(), FSDP.optim_state_dict(model, optimizer)", config, configs)
    assert after in new
    assert "state_dict_type(" not in new


@pytest.mark.parametrize(
    ("block", "config", "configs"),
    [
        ("state = model.state_dict()", "offload_to_cpu=True", "config"),
        ("state = model.state_dict()", "rank0_only=path", "config"),
        ("state = model.state_dict()", "offload_to_cpu=path, rank0_only=True", "config"),
        ("FSDP.optim_state_dict(model, optimizer)", ALONE, "config, FullOptimStateDictConfig(offload_to_cpu=False)"),
        ("state = other(model), model.state_dict()", ALONE, "config"),
        ("state = model.state_dict(), other.state_dict()", ALONE, "config"),
        ("state = model.state_dict(prefix='a.')", ALONE, "config"),
        ("state = FSDP.optim_state_dict(model, optimizer, path)", ALONE, "config"),
    ],
)
def test_a_context_that_somebody_else_may_need_stays(block: str, config: str, configs: str) -> None:
    assert "    with state_dict_type(model, StateDictType.FULL_STATE_DICT" in saved(block, config, configs)


POLICY = """import torch
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP, StateDictType

POLICY = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)


def first(model):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, POLICY):
        return model.state_dict()


def second(model, path):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, POLICY):
        torch.save(model.state_dict(), path)


def main(path):
    model = FSDP(nn.Linear(4, 4))
    first(model)
    second(model, path)
"""


def test_settings_that_nobody_else_reads_go_with_their_contexts() -> None:
    assert "FullStateDictConfig" not in migrated(train=POLICY)["train"]
    assert "POLICY = FullStateDictConfig(" in migrated(train=POLICY, other="from train import POLICY\n")["train"]
