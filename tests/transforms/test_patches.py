"""Patches inside patches: kept with the text around them, dropped with it, or refused."""

from __future__ import annotations

import pytest
from to_fsdp2.transforms.text.patches import Old, Patch, PatchConflict, flatten
from to_fsdp2.transforms.text.source import Source

SOURCE = Source.read("a.py", b"f(one, two)\n")


def rendered(inner: Patch, *parts: str | Old) -> str:
    (edit,) = flatten(SOURCE, [Patch("a.py", 0, 11, parts, "outer"), inner])
    return edit.text


@pytest.mark.parametrize("needed", [False, True])
def test_a_patch_inside_kept_text_is_applied(needed: bool) -> None:
    assert rendered(Patch("a.py", 2, 5, ("1",), "inner", needed), "g(", Old(2, 5), ")") == "g(1)"


def test_a_patch_goes_with_the_text_around_it() -> None:
    assert rendered(Patch("a.py", 2, 5, ("1",), "inner"), "g(", Old(7, 10), ")") == "g(two)"


def test_a_needed_patch_does_not_go() -> None:
    with pytest.raises(PatchConflict):
        rendered(Patch("a.py", 2, 5, ("1",), "inner", needed=True), "g(", Old(7, 10), ")")


def test_an_argument_that_joins_a_call_is_not_repeated_with_its_neighbour() -> None:
    elsewhere = Patch("a.py", 0, 0, ("use(", Old(7, 10), ")\n"), "a statement before")
    joins = Patch("a.py", 10, 10, (", three",), "one more argument")
    texts = [edit.text for edit in flatten(SOURCE, [elsewhere, joins])]
    assert texts == ["use(two)\n", ", three"]
