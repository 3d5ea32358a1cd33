"""Optimizer state of a program that wraps its model by DataParallel on some machines keeps the model's own names."""

from __future__ import annotations

from migrating import analyse_texts

_TRAIN = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def main(rank, path):
    model = torch.nn.Linear(2, 2)
    if rank == -1:
        model = torch.nn.DataParallel(model)
    if rank != -1:
        model = DDP(model, broadcast_buffers=False)
    optimizer = torch.optim.AdamW(model.parameters())
    resume(torch.load(path), optimizer)
    train(model, optimizer)
    state = optimizer.state_dict()
    if rank in (-1, 0):
        torch.save(state, path)


def resume(state, optimizer):
    optimizer.load_state_dict(state)
"""


def test_the_wrapper_is_left_out() -> None:
    _, after = analyse_texts({"train.py": _TRAIN})
    inner = 'getattr(model, "module", model)'
    assert f"model={inner})" in after["train.py"], after["train.py"]
    assert f"get_optimizer_state_dict(\n        {inner},\n" in after["train.py"], after["train.py"]


def test_a_model_without_it_stands_alone() -> None:
    plain = _TRAIN.replace("    if rank == -1:\n        model = torch.nn.DataParallel(model)\n", "")
    _, after = analyse_texts({"train.py": plain})
    assert "getattr" not in after["train.py"]


def test_the_wrapper_is_left_out_where_the_load_moves_behind_it() -> None:
    optimizer = "    optimizer = torch.optim.AdamW(model.parameters())\n    resume(torch.load(path), optimizer)\n"
    head, model, rest = _TRAIN.replace(optimizer, "").partition("    model = torch.nn.Linear(2, 2)\n")
    _, after = analyse_texts({"train.py": head + model + optimizer + rest})
    moved = after["train.py"].partition("fully_shard(model)\n")[2]
    assert 'resume(torch.load(path), optimizer, model=getattr(model, "module", model))' in moved, after["train.py"]
