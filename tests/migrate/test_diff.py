"""`git apply` takes every patch and makes exactly the new bytes of it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from repositories import git
from to_fsdp2.migrate.diff import file_patch

LINES = st.lists(
    st.sampled_from([b"a", b"b", b"", b"\xff latin", "é".encode(), b"\ttab ", b"-- x", b"++ y", b"@@ -1 +1 @@"]),
    max_size=12,
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\n", b"\r"])


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    pieces = [line + draw(ENDS) for line in draw(LINES)]
    data = draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + b"".join(pieces)
    return data.rstrip(b"\r\n") if draw(st.booleans()) else data


NAMES = st.sampled_from(["a.py", "with space.py", "sub/b.py", "é.py", 'quo"te.py', "tab\there.py", "back\\slash.py"])


def apply(folder: Path, patch: bytes, *options: str) -> None:
    result = git(folder, "apply", *options, "-", stdin=patch)
    assert result.returncode == 0, result.stderr.decode() + patch.decode(errors="replace")


@settings(max_examples=150, deadline=None)
@given(NAMES, contents(), contents())
def test_git_applies_it_forwards_and_backwards(name: str, old: bytes, new: bytes) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, name)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(old)
        patch = file_patch(name, old, new)
        if old == new:
            assert patch == b""
            return
        apply(Path(scratch), patch)
        assert file.read_bytes() == new
        apply(Path(scratch), patch, "--reverse")
        assert file.read_bytes() == old


@settings(max_examples=40, deadline=None)
@given(NAMES, contents().filter(len))
def test_git_adds_a_file(name: str, new: bytes) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        apply(Path(scratch), file_patch(name, None, new))
        assert Path(scratch, name).read_bytes() == new
        apply(Path(scratch), file_patch(name, None, new), "--reverse")
        assert not Path(scratch, name).exists()


def test_paths_are_those_of_the_repository_in_every_folder(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.py").write_bytes(b"x = 1")
    apply(tmp_path / "sub", file_patch("sub/a.py", b"x = 1", b"x = 2"))
    assert (tmp_path / "sub" / "a.py").read_bytes() == b"x = 2"


@pytest.mark.parametrize("missing", ["old", "new", "both"])
def test_the_missing_newline_is_said(missing: str) -> None:
    old = b"x = 1" if missing in ("old", "both") else b"x = 1\n"
    new = b"x = 2" if missing in ("new", "both") else b"x = 2\n"
    marks = file_patch("a.py", old, new).count(b"\\ No newline at end of file")
    assert marks == (2 if missing == "both" else 1)
