"""Copies of DDP's wrapper, of the model in it, and of what may be either."""

from __future__ import annotations

import pytest
from migrated_texts import HEAD, migrated

PROGRAM = (
    HEAD
    + """import copy


def sample(model, parallel):
    copied = copy.deepcopy(model)
    if parallel:
        copied = copied.module
    return copied


def main(net, options, parallel):
    model = DDP(net, **options)
    {call}


if __name__ == "__main__":
    main(*settings())
"""
)


@pytest.mark.parametrize(
    ("call", "copied", "inner"),
    [
        ("sample(model, parallel)", "wrapped_copy(model)", "copied.module"),
        ("sample(model.module, False)", "copy.deepcopy(model)", 'getattr(copied, "module", copied)'),
    ],
)
def test_a_copy_has_the_names_of_what_was_copied(call: str, copied: str, inner: str) -> None:
    text = migrated(train=PROGRAM.format(call=call))["train"]
    assert f"    copied = {copied}\n" in text and f"        copied = {inner}\n" in text


def test_another_objects_wrapper_is_asked_for_in_a_function_named_like_a_method() -> None:
    program = (
        HEAD
        + """import copy


def train(net, options, loader):
    model = DDP(net, **options)
    best = {}
    for x in loader:
        model.train()
        model(x).sum().backward()
        best["model"] = copy.deepcopy(model)
    return best["model"].module if hasattr(model, "module") else best["model"]
"""
    )
    text = migrated(train=program)["train"]
    assert 'best["model"] = wrapped_copy(model)' in text
    assert 'return best["model"].module if (isinstance(model, FSDPModule) or hasattr(model, "module")) else best["model"]' in text


HOLDER = HEAD + """import copy


class Executor:
    def __init__(self, net, size):
        {kept}


def main(net):
    executor = Executor(net, 2)
    average = copy.deepcopy(executor)
    torch.save(average.model.state_dict(), "average.pt")


main(nn.Linear(2, 2))
"""


@pytest.mark.parametrize(("kept", "is_wrapped"), [("self.model = DDP(net)", True), ("self.model = net\n        DDP(net)", False)])
def test_a_copy_of_what_holds_a_wrapper_has_one_too(kept: str, is_wrapped: bool) -> None:
    assert ("wrapped_copy(executor)" in migrated(train=HOLDER.format(kept=kept))["train"]) == is_wrapped
