"""Loops and functions that take wrappers off, whatever else they take off: they stay, and so do the classes that they ask for."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

FSDP = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
LOOPS = {
    "a_choice_of_values": """\
def unwrap(model):
    while isinstance(model, FSDP) or hasattr(model, "_checkpoint_wrapped_module"):
        model = model.module if isinstance(model, FSDP) else model._checkpoint_wrapped_module
    return model
""",
    "a_choice_of_statements": """\
def unwrap(model):
    while isinstance(model, FSDP) or hasattr(model, "_orig_mod"):
        if isinstance(model, FSDP):
            model = model.module
        else:
            model = model._orig_mod
    return model
""",
}
MAIN = """

def main():
    torch.distributed.init_process_group("gloo")
    print(unwrap(FSDP(torch.nn.Linear(4, 4), use_orig_params=True)))


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_over_layers_of_several_kinds(name: str) -> None:
    text = migrated(train=FSDP + LOOPS[name] + MAIN)["train"]
    assert LOOPS[name] in text and "shard_like_fsdp1(" in text


COUNTS = """

def count(model):
    return sum(is_wrapper(m) for m in [model])
"""
CLASSES = """\
WRAPPERS = (nn.DataParallel, DDP)


def is_wrapper(model):
    return isinstance(model, WRAPPERS)


def unwrap(model):
    return model.module if is_wrapper(model) else model


def train(net):
    model = DDP(net)
    print(unwrap(model))
"""


@pytest.mark.parametrize("more", ["", COUNTS])
def test_classes_in_a_constant_that_a_function_asks_for(more: str) -> None:
    """The answer has to be the same for all who ask."""
    text = migrated(train=HEAD + CLASSES + more)["train"]
    asks = "WRAPPERS = (nn.DataParallel, DDP)" in text
    stays = "return model.module if is_wrapper(model) else model" in text
    assert asks == stays == (not more)
