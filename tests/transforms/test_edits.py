"""Edits are made all at once, in order, in the file's own newlines, or refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from to_fsdp2.transforms.text.edits import Edit, EditConflict, apply_edits
from to_fsdp2.transforms.text.source import Source


def source(text: str) -> Source:
    return Source.read("a.py", text.encode())


def test_nothing_to_do() -> None:
    assert apply_edits(source("x = 1\r\n"), []) == "x = 1\r\n"


def test_offsets_are_those_of_the_untouched_text() -> None:
    edits = [Edit(4, 5, "200", "b"), Edit(0, 1, "long_name", "a")]
    assert apply_edits(source("x = 1"), edits) == "long_name = 200"


def test_insertions_at_one_place_keep_their_order_and_come_first() -> None:
    edits = [
        Edit(4, 5, "9", "r"),
        Edit(4, 4, "a + ", "1"),
        Edit(4, 4, "b + ", "2"),
        Edit(5, 5, "  # end", "3"),
    ]
    assert apply_edits(source("x = 1"), edits) == "x = a + b + 9  # end"


def test_neighbours_do_not_conflict() -> None:
    assert apply_edits(source("ab = 1"), [Edit(0, 1, "x", "1"), Edit(1, 2, "y", "2")]) == "xy = 1"


def test_the_same_replacement_twice_is_made_once() -> None:
    edit = Edit(0, 1, "y", "rename")
    assert apply_edits(source("x = 1"), [edit, edit]) == "y = 1"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Edit(0, 5, "", "drop the statement"), Edit(2, 3, "!", "rename")),
        (Edit(0, 3, "p", "drop the statement"), Edit(2, 5, "q", "rename")),
        (Edit(0, 5, "p", "drop the statement"), Edit(0, 5, "q", "rename")),
        (Edit(0, 5, "p", "drop the statement"), Edit(3, 3, "q", "rename")),
    ],
)
def test_overlapping_edits_are_named(first: Edit, second: Edit) -> None:
    for edits in ([first, second], [second, first]):
        with pytest.raises(EditConflict) as caught:
            apply_edits(source("x = 1"), edits)
        assert "drop the statement" in str(caught.value)
        assert "rename" in str(caught.value)
        assert str(caught.value).startswith("a.py:1: ")


def test_newlines_follow_the_place() -> None:
    mixed = source("a = 1\r\nb = 2\n")
    edits = [Edit(0, 0, "import x\nimport y\n", "imports"), Edit(7, 7, "c = 3\r\n", "statement")]
    assert apply_edits(mixed, edits) == "import x\r\nimport y\r\na = 1\r\nc = 3\nb = 2\n"


@pytest.mark.parametrize(("start", "end"), [(3, 2), (-1, 2)])
def test_no_backward_stretch(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="not a stretch"):
        Edit(start, end, "", "why")


def test_past_the_end() -> None:
    with pytest.raises(ValueError, match="past the end"):
        apply_edits(source("x = 1"), [Edit(4, 99, "", "why")])


@given(st.lists(st.sampled_from("abcé𝛼\n"), max_size=30), st.data())
def test_equal_to_editing_from_the_back(letters: list[str], data: st.DataObject) -> None:
    text = "#" + "".join(letters).replace("\n", "\n#")
    bounds = sorted(data.draw(st.lists(st.integers(0, len(text)), unique=True, max_size=8)))
    edits = [
        Edit(start, end, data.draw(st.sampled_from(["", "x", "yy"])), str(start))
        for start, end in zip(bounds[::2], bounds[1::2], strict=False)
    ]
    expected = text
    for edit in reversed(edits):
        expected = expected[: edit.start] + edit.text + expected[edit.end :]
    shuffled = data.draw(st.permutations(edits))
    assert apply_edits(source(text), shuffled) == expected
