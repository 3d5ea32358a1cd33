"""Files of a program that wraps its model on some ways only: their keys may have DDP's prefix or not."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

_TEXT = """\
import torch
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)


def main(args):
    torch.cuda.set_device(args.rank)
    model = Net()
    if args.distributed:
        model = DDP(model, broadcast_buffers=False)
    state = torch.load(args.path)
    {before}
    {load}


main(parse())
"""
_CUT = '{name.removeprefix("module."): tensor for name, tensor in state.items()}'


def _migrated(before: str = "pass", load: str = "model.load_state_dict(state)") -> str:
    return analyse_texts({"train.py": _TEXT.format(before=before, load=load)})[1]["train.py"]


def test_keys_lose_a_prefix_that_they_may_have() -> None:
    text = _migrated()
    assert "set_model_state_dict(" in text and _CUT in text


@pytest.mark.parametrize(
    "before",
    [
        'state = {key.replace("module.", ""): value for key, value in state.items()}',
        "state = {key[7:] if key.startswith('module') else key: value for key, value in state.items()}",
        'for key in list(state):\n        state[key.removeprefix("module.")] = state.pop(key)',
    ],
)
def test_a_prefix_that_is_cut_before_is_not_cut_again(before: str) -> None:
    text = _migrated(before)
    assert "set_model_state_dict(" in text and _CUT not in text


def test_the_model_itself_never_had_a_prefix() -> None:
    assert _CUT not in _migrated(load='getattr(model, "module", model).load_state_dict(state)')


@pytest.mark.parametrize(
    ("callers", "cut"),
    [
        ('reload(getattr(model, "module", model), state)', False),
        ('inner = getattr(model, "module", model)\n    reload(inner, state)', False),
        ('reload(getattr(model, "module", model), state)\n    reload(model, state)', True),
    ],
)
def test_a_function_that_gets_the_model_itself_finds_no_prefix(callers: str, cut: bool) -> None:
    function = "def reload(model, state):\n    model.load_state_dict(state)\n\n\ndef main"
    program = _TEXT.format(before="pass", load=callers).replace("def main", function)
    text = analyse_texts({"train.py": program})[1]["train.py"]
    assert "set_model_state_dict(" in text
    assert (_CUT in text) == cut
