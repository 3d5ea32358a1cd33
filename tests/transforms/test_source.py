"""A Source finds what ast found, at the same characters, and gives the same bytes back."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from to_fsdp2.transforms.text.source import Source, SourceError

NEWLINES = st.sampled_from(["\n", "\r\n", "\r"])
STATEMENTS = st.sampled_from(
    [
        "x = f(a, 'plain')",
        "naïve = g('é', key)",
        "s = '𝛼𝛽 astral'; t = h(s, last)",
        "value = first + \\{n}    second('ü')",
        "text = '''one{n}\ttwo é{n}three''' + tail(x)",
        "call({n}\targument,{n}    'ß', other{n})",
        "# a comment with \u2028 and \x1c and \x85 in it",
        "",
        "\x0c",
        "if x:{n}\tdeep(y)",
        "if x:{n}    if y:{n}    \tdeeper('é', y)",
        "\x0cafter_form_feed('é')",
    ]
)


@st.composite
def programs(draw: st.DrawFn) -> str:
    lines = draw(st.lists(STATEMENTS, max_size=8))
    pieces = [line.replace("{n}", draw(NEWLINES)) + draw(NEWLINES) for line in lines]
    text = "".join(pieces)
    return text.rstrip("\r\n") if draw(st.booleans()) else text


@given(programs(), st.booleans())
def test_same_bytes_and_same_nodes(text: str, bom: bool) -> None:
    data = (b"\xef\xbb\xbf" if bom else b"") + text.encode()
    source = Source.read("a.py", data)
    assert source.encode(source.text) == data
    assert "".join(source.lines) == source.text
    for node in ast.walk(source.tree):
        if isinstance(node, ast.expr):
            again = ast.parse(f"({source.segment(node)}\n)", mode="eval").body
            assert ast.dump(again) == ast.dump(ast.parse(ast.unparse(node), mode="eval").body)


@given(programs())
def test_positions_are_those_of_ast(text: str) -> None:
    source = Source.read("a.py", text.encode())
    for node in ast.walk(source.tree):
        if isinstance(node, ast.stmt | ast.expr):
            start, _ = source.span(node)
            line, column = source.position(start)
            assert line == node.lineno
            assert (
                source.lines[line - 1][: column - 1].encode()
                == source.lines[line - 1].encode()[: node.col_offset]
            )
            assert source.line_of(start).startswith(source.indent_at(start))


@given(programs(), st.data())
def test_newline_is_one_that_the_neighbourhood_uses(text: str, data: st.DataObject) -> None:
    source = Source.read("a.py", text.encode())
    offset = data.draw(st.integers(0, len(source.text)))
    line, _ = source.position(offset)
    ends = [piece[len(piece.rstrip("\r\n")) :] for piece in source.lines]
    nearby = [end for end in ends[max(line - 2, 0) : line] if end]
    if not nearby:
        assert source.newline(offset) == "\n"
    else:
        # `\r` and `\n` next to each other may be two marks or one; what counts is that it is used right here.
        assert any(end.endswith(source.newline(offset)) or source.newline(offset) in end for end in nearby)


def test_newline_in_a_mixed_file() -> None:
    source = Source.read("a.py", b"a = 1\r\nb = 2\nc = 3")
    assert source.newline(0) == "\r\n"
    assert source.newline(6) == "\r\n"  # between the two characters of the mark
    assert source.newline(8) == "\n"
    assert source.newline(len(source.text)) == "\n"
    assert Source.read("a.py", b"").newline(0) == "\n"
    assert Source.read("a.py", b"a = 1\r\n").newline(7) == "\r\n"


@pytest.mark.parametrize(
    ("data", "encoding", "word"),
    [
        ("# -*- coding: latin-1 -*-\nx = 'é'\n".encode("latin-1"), "iso8859-1", "é"),
        ("#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\r\nx = '€'\n".encode("cp1252"), "cp1252", "€"),
        ("# coding: latin-1 é\nx = 'é'".encode("latin-1"), "iso8859-1", "é"),
        ("\n# coding: shift_jis\nx = '日'".encode("shift_jis"), "shift_jis", "日"),
        (b"\xef\xbb\xbf# coding: utf-8-sig\nx = '\xc3\xa9'\n", "utf-8", "é"),
        ("x = 1\n# coding: latin-1\ny = 'é'\n".encode(), "utf-8", "é"),
        ("x = 1\n\n# coding: latin-1\ny = 'é'\n".encode(), "utf-8", "é"),
    ],
)
def test_declared_encodings(data: bytes, encoding: str, word: str) -> None:
    source = Source.read("a.py", data)
    assert source.encoding == encoding
    assert source.encode(source.text) == data
    assert word in source.text
    assert not source.text.startswith("\ufeff")
    constants = [node.value for node in ast.walk(source.tree) if isinstance(node, ast.Constant)]
    assert word in constants
    assert ast.dump(source.tree) == ast.dump(ast.parse(data))


@pytest.mark.parametrize(
    ("data", "line", "part"),
    [
        (b"x = 1\ny = '\xff'\n", 2, "not decodable as utf-8"),
        (b"# coding: no-such-codec\n", 1, "unknown encoding: no-such-codec"),
        (b"# coding: rot13\n", 1, "unknown encoding: rot13"),
        (b"\n# coding: utf-16\nx = 1\n", 2, "unknown encoding: utf-16"),
        (b"\xef\xbb\xbf# coding: latin-1\n", 1, "byte order mark"),
        (b"x = 1\r\ny = '\0'\r\n", 2, "NUL"),
        (b"x = 1\nprint 'python 2'\n", 2, "Missing parentheses"),
        (b"def f(:\n", 1, "invalid syntax"),
        (b"x = (1,\n", 1, "never closed"),
        (b"# coding: utf-7\nx = '+AOk-+AOk-'\n", 1, "same bytes"),
        (b"x = " + b"(" * 5000 + b")" * 5000, 1, ""),
    ],
)
def test_unreadable_files_say_where_and_why(data: bytes, line: int, part: str) -> None:
    with pytest.raises(SourceError) as caught:
        Source.read("pkg/a.py", data)
    assert caught.value.file == "pkg/a.py"
    assert caught.value.line == line
    assert part in caught.value.message
    assert str(caught.value).startswith(f"pkg/a.py:{line}: ")


def test_no_warning_escapes_for_the_code_of_others(recwarn: pytest.WarningsRecorder) -> None:
    Source.read("a.py", b"pattern = '\\d'\nif pattern is 'x': pass\n")
    assert not recwarn.list


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"x = 1\r\nif x:\n\ty = 2", True),
        ("# coding: latin-1\nx = 'é'\n".encode("latin-1"), True),
        (b"\xef\xbb\xbfx = 1\n", True),
        (b"\x0cx = 1\n", False),
    ],
)
def test_round_trip_through_libcst(data: bytes, expected: bool) -> None:
    assert Source.read("a.py", data).round_trips() is expected
