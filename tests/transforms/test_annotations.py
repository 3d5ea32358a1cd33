"""Where the comments at manual sites land."""

from __future__ import annotations

import ast

import pytest
from to_fsdp2.transforms.findings import Finding, Level
from to_fsdp2.transforms.text.annotations import annotation_edits
from to_fsdp2.transforms.text.edits import Edit, apply_edits
from to_fsdp2.transforms.text.source import Source


def finding(line: int, level: Level = Level.MANUAL, message: str = "by\nhand", suppressed: bool = False) -> Finding:
    return Finding("FS402", level, "a.py", line, 1, line, 2, "torch.X", message, suppressed=suppressed)


def annotated(text: str, *findings: Finding, edits: tuple[Edit, ...] = ()) -> str:
    source = Source.read("a.py", text.encode())
    result = apply_edits(source, [*edits, *annotation_edits(source, findings, edits)])
    ast.parse(result)
    return result


COMMENT = "# TODO(to-fsdp2: FS402) by hand"


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("x = 1\ny = 2\n", 2, f"x = 1\n{COMMENT}\ny = 2\n"),
        ("if x:\r\n\ty = 2\r\n", 2, f"if x:\r\n\t{COMMENT}\r\n\ty = 2\r\n"),
        ("x = f(\n    '''a\nb''',\n    c)\n", 3, f"{COMMENT}\nx = f(\n    '''a\nb''',\n    c)\n"),
        ("x = 1 + \\\n    y\n", 2, f"{COMMENT}\nx = 1 + \\\n    y\n"),
        ("@f\n@g\ndef h(): pass\n", 2, f"{COMMENT}\n@f\n@g\ndef h(): pass\n"),
        ("if x: y = 2\n", 1, f"{COMMENT}\nif x: y = 2\n"),
        ("x = 1; y = [\n  2]\n", 2, f"{COMMENT}\nx = 1; y = [\n  2]\n"),
        ("def f():\n    '''doc'''\n    return x", 3, f"def f():\n    '''doc'''\n    {COMMENT}\n    return x"),
        ("try:\n    x\nexcept E:\n    y\n", 4, f"try:\n    x\nexcept E:\n    {COMMENT}\n    y\n"),
        ("match x:\n    case 1:\n        y\n", 3, f"match x:\n    case 1:\n        {COMMENT}\n        y\n"),
    ],
)
def test_above_the_statement(text: str, line: int, expected: str) -> None:
    assert annotated(text, finding(line)) == expected


def test_only_what_is_left_to_a_person() -> None:
    others = [finding(1, level) for level in Level if level is not Level.MANUAL]
    assert annotated("x = 1\n", *others, finding(1, suppressed=True)) == "x = 1\n"


def test_once_per_reason_and_not_again() -> None:
    findings = [finding(1), finding(1), finding(1, message="something else")]
    once = annotated("x = 1\n", *findings)
    assert once == f"{COMMENT}\n# TODO(to-fsdp2: FS402) something else\nx = 1\n"
    assert annotated(once, finding(3), finding(3, message="something else")) == once


def test_never_inside_replaced_text() -> None:
    edit = Edit(0, 12, "z = 3\n", "both statements become one")
    assert annotated("x = 1\ny = 2\nw\n", finding(2), edits=(edit,)) == f"{COMMENT}\nz = 3\nw\n"
