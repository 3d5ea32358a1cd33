"""Models that code out of sight makes: what little is seen to come to their variables does not tell what they are."""

from __future__ import annotations

from migrated_texts import HEAD, texts

SAVING = '''from typing import Any, Dict, Union
import torch
from torch import nn

Parameters = Union[Dict[str, Any], nn.Module]


def save(parameters: Parameters, held):
    if isinstance(parameters, nn.parallel.DistributedDataParallel):
        parameters = parameters.module
    torch.save({"model": parameters.state_dict(), **{k: held[k].state_dict() for k in held if k != "start"}}, "a.pt")
'''
WORKLOAD = HEAD + """

def init(rng):
    return DDP(nn.Linear(4, 4)), {}
"""
MAIN = '''import importlib
import sys
import time
import torch.distributed as dist
from saving import save


def main(name):
    dist.init_process_group("gloo")
    workload = importlib.import_module(f"models.{name}")
    state = {"is_time_left": True, "last_step": time.time()}
    parameters, optimizer_state = workload.init(1)
    while state["is_time_left"]:
        optimizer_state, parameters = workload.update(parameters, optimizer_state)
        held = {"start": time.time()}
        held["optimizer"] = optimizer_state
        if dist.get_rank() == 0:
            save(parameters, held)
        state["is_time_left"] = state["last_step"] < 10
        state["last_step"] = time.time()


main(sys.argv[1])
'''


def test_they_are_held_whole_where_one_rank_saves_them() -> None:
    """Around the test of the rank: the loop goes round equally often, though it notes the time."""
    new = texts({"saving": SAVING, "models/__init__": "", "models/workload": WORKLOAD, "main": MAIN})
    loop = new["main"].partition("while state")[2]
    assert "with whole_on_each_rank(parameters, held):\n            if dist.get_rank() == 0:" in loop
