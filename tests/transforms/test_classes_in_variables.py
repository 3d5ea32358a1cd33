"""Wrapper classes in local variables, for ``isinstance`` alone: no function stands in for one there."""

from __future__ import annotations

from migrated_texts import HEAD, migrated

PROGRAM = HEAD + """from apex.parallel import DistributedDataParallel as ApexDDP


def infer(model, with_apex):
    wrapper = ApexDDP if with_apex else DDP
    {use}


def main():
    infer(DDP(nn.Linear(4, 4)), False)


main()
"""


def test_a_choice_of_classes_is_asked_for() -> None:
    text = migrated(train=PROGRAM.format(use="return isinstance(model, wrapper)"))["train"]
    assert "wrapper = ApexDDP if with_apex else FSDPModule" in text


def test_the_branch_that_unwraps_is_for_other_models() -> None:
    use = "print(isinstance(model, wrapper))\n    return model.module.bias if isinstance(model, wrapper) else model.bias"
    text = migrated(train=PROGRAM.format(use=use))["train"]
    assert "wrapper = ApexDDP if with_apex else DDP" in text and "print(isinstance(model, (wrapper, FSDPModule)))" in text
    assert "return model.module.bias if isinstance(model, wrapper) else model.bias" in text


def test_builtins_behind_star_imports() -> None:
    program = "from typing import *\n" + PROGRAM.format(use="return isinstance(model, DDP)")
    assert "isinstance(model, FSDPModule)" in migrated(train=program)["train"]


def test_a_variable_keeps_its_name_whatever_comes_to_it() -> None:
    """In a registry of classes, of which the wrapper may be the only one that is seen."""
    program = HEAD + """def add(kind, classes):
    key = kind.__name__
    if hasattr(kind, "short"):
        key = kind.short
    classes[key] = kind
    return kind


CLASSES = {}
add(DDP, CLASSES)
"""
    text = migrated(train=program)["train"]
    assert 'key = kind.__name__\n    if hasattr(kind, "short"):\n        key = kind.short\n    classes[key] = kind\n' in text
