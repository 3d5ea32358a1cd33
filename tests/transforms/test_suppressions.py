"""Which comment speaks for which lines and rules."""

from __future__ import annotations

import pytest
from to_fsdp2.transforms.text.source import Source
from to_fsdp2.transforms.text.suppressions import Suppressions


def suppressions(text: str) -> Suppressions:
    return Suppressions(Source.read("a.py", text.encode()))


@pytest.mark.parametrize(
    ("text", "rule", "line", "end_line", "expected"),
    [
        ("x = 1\n", "FS301", 1, 1, False),
        ("x = 1  # to-fsdp2: ignore[FS301] the loop ends there\n", "FS301", 1, 1, True),
        ("x = 1  # to-fsdp2: ignore[FS301]\n", "FS302", 1, 1, False),
        ("x = 1  # to-fsdp2: ignore[FS301, FS302]\n", "FS302", 1, 1, True),
        ("x = 1  # to-fsdp2: ignore\n", "FS302", 1, 1, True),
        ("x = 1  # to-fsdp2: ignored\n", "FS302", 1, 1, False),
        ("x = 1  # noqa  # to-fsdp2:ignore[FS301]\n", "FS301", 1, 1, True),
        ("x = 1  # to-fsdp2: ignore[FS301]\ny = 2\n", "FS301", 2, 2, False),
        ("# to-fsdp2: ignore[FS301]\ny = 2\n", "FS301", 2, 2, True),
        ("f(\n    1,  # to-fsdp2: ignore[FS301]\n)\n", "FS301", 1, 3, True),
        ("# to-fsdp2: ignore[FS301]\n# to-fsdp2: ignore[FS302]\ny = 2\n", "FS302", 3, 3, True),
    ],
)
def test_comments(text: str, rule: str, line: int, end_line: int, expected: bool) -> None:
    assert suppressions(text).cover(rule, line, end_line) is expected
