"""State whose tensors are told apart before a load: what is cloned is what is loaded."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(net, path, state):
    model = FSDP(net)
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, {state}))
"""


@pytest.mark.parametrize("state", ["torch.load(path)", 'torch.load(path)["optimizer"]'])
def test_state_that_is_read_from_a_file_is_read_once(state: str) -> None:
    text = analyse_texts({"train.py": PROGRAM.format(state=state)})[1]["train.py"]
    assert f"    optimizer_state_dict = {state}\n    for state_2 in optimizer_state_dict[" in text
    assert "model, optimizer, optimizer_state_dict, options=" in text
    assert text.count("torch.load(") == 1


@pytest.mark.parametrize("given", ["state", 'state["optimizer"]'])
def test_state_that_has_a_name_keeps_it(given: str) -> None:
    text = analyse_texts({"train.py": PROGRAM.format(state=given)})[1]["train.py"]
    assert f"model, optimizer, {given}, options=" in text
