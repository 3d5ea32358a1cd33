"""State that callers hand in: calls that get too long are broken as their neighbours would be."""

from __future__ import annotations

import ast

import pytest
from migrating import analyse_texts

_TEXT = """\
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def save_the_checkpoint(model, optimizer, path, is_best=False):
    state = {{"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}}
    torch.save(state, path)


def main():
    torch.cuda.set_device(0)
    model = DDP(nn.Linear(8, 8), device_ids=[0])
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(3):
        for batch in batches:
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        if dist.get_rank() == 0:
            {call}


main()
"""
_STATES = ("model_state_dict=model_state_dict,", "optimizer_state_dict=optimizer_state_dict,")


def _call(call: str) -> list[str]:
    _, results = analyse_texts({"train.py": _TEXT.format(call=call)})
    text = results["train.py"]
    ast.parse(text)
    lines = [line.strip() for line in text.splitlines()]
    start = max(number for number, line in enumerate(lines) if line.startswith("save_the_checkpoint("))
    return lines[start : lines.index("", start)]


@pytest.mark.parametrize("comma", ["", ",", " , "])
def test_a_line_becomes_a_line_an_argument(comma: str) -> None:
    call = _call(f'save_the_checkpoint(model, optimizer, "last.pt", is_best=(epoch == 2){comma})')
    assert call == [
        "save_the_checkpoint(", "model,", "optimizer,", '"last.pt",', "is_best=(epoch == 2),", *_STATES, ")",
    ]  # fmt: skip


def test_arguments_that_are_aligned_stay_so() -> None:
    call = _call(f'save_the_checkpoint(model, optimizer,\n{" " * 32}"last.pt")')
    assert call == ["save_the_checkpoint(model, optimizer,", '"last.pt",', _STATES[0], _STATES[1].replace(",", ")")]
