"""`apply --interactive`: each change with its reason; what is declined leaves its programs alone, whole."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., tuple[int, bytes, str]]

OLD = "model = FSDP(net)\n"
NEW = "model = fully_shard(net)\n"


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda text: monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{answer}\n" for answer in text)))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    paths = {name: tmp_path / f"{name}.py" for name in "abc"}
    for path in paths.values():
        path.write_text(OLD * 2)
    return paths


@pytest.mark.parametrize(
    ("given", "written"),
    [("yyyyyy", "abc"), ("aaa", "abc"), ("ynan", "b"), ("naq", "b"), ("yyq", "a"), ("q", ""), ("?yYna", "ac")],
)
def test_what_is_declined_leaves_its_program_alone(
    command: Command, answers: Callable[[str], None], files: dict[str, Path], given: str, written: str
) -> None:
    answers(given)
    command("apply", "--interactive")
    assert {name for name, path in files.items() if path.read_text() == NEW * 2} == set(written)
    assert all(path.read_text() in (OLD * 2, NEW * 2) for path in files.values())


def test_each_change_comes_with_its_reason(command: Command, answers: Callable[[str], None], files: dict[str, Path]) -> None:
    answers("yyyyq")
    code, out, err = command("apply", "-i")
    assert code == 0
    assert "a.py (1 of 3)" in err
    assert err.count("wraps [the] model") == 5
    assert "-model = FSDP(net)" in err
    assert "+model = fully_shard(net)" in err
    assert "leave c.py alone" in err
    assert b"c.py: left alone: declined" in out
    assert "2 changed" in err


def test_the_end_of_the_answers_writes_nothing(command: Command, answers: Callable[[str], None], files: dict[str, Path]) -> None:
    answers("yy")
    assert command("apply", "-i")[0] == 130
    assert all(path.read_text() == OLD * 2 for path in files.values())


def test_it_excludes_commits(command: Command) -> None:
    assert command("apply", "-i", "--commits")[0] == 64
