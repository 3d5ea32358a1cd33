"""Every file is old or new at any moment; all are old when one cannot be written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from to_fsdp2.migrate import writer
from to_fsdp2.migrate.writer import Change, WriteError, write_all

OLD = b"old = 1\n" * 2000
NEW = b"new = 2\n" * 3000


def change(path: Path, old: bytes | None = OLD, new: bytes = NEW) -> Change:
    return Change(path.name, path, old, new)


def prepare(folder: Path, count: int) -> list[Change]:
    changes = [change(folder / f"{number}.py") for number in range(count)]
    for one in changes:
        one.path.write_bytes(OLD)
    return changes


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_old_and_added_files(tmp_path: Path) -> None:
    changes = [*prepare(tmp_path, 2), change(tmp_path / "helper.py", old=None)]
    write_all(changes, tmp_path)
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {NEW}
    assert names(tmp_path) == ["0.py", "1.py", "helper.py"]


def test_mode_is_kept_and_a_new_file_follows_the_umask(tmp_path: Path) -> None:
    [one] = prepare(tmp_path, 1)
    one.path.chmod(0o754)
    previous = os.umask(0o027)
    try:
        write_all([one, change(tmp_path / "added.py", old=None)], tmp_path)
    finally:
        os.umask(previous)
    assert stat.S_IMODE(one.path.stat().st_mode) == 0o754
    assert stat.S_IMODE((tmp_path / "added.py").stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can give a file to somebody else")
def test_owner_is_kept(tmp_path: Path) -> None:
    [one] = prepare(tmp_path, 1)
    os.chown(one.path, 12345, 23456)
    write_all([one], tmp_path)
    assert (one.path.stat().st_uid, one.path.stat().st_gid) == (12345, 23456)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    [one] = prepare(tmp_path / "real", 1)
    link = tmp_path / "link.py"
    link.symlink_to("real/0.py")
    write_all([change(link)], tmp_path)
    assert link.is_symlink()
    assert one.path.read_bytes() == NEW


@pytest.mark.parametrize("problem", ["read-only", "changed", "gone", "exists"])
def test_nothing_is_written_when_one_file_cannot_be(tmp_path: Path, problem: str) -> None:
    changes = prepare(tmp_path, 3)
    last = changes[2].path
    if problem == "read-only":
        last.chmod(0o444)
    elif problem == "changed":
        last.write_bytes(OLD + b"# edited meanwhile\n")
    elif problem == "gone":
        last.unlink()
    else:
        changes[2] = change(last, old=None)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(WriteError, match=last.name):
        write_all(changes, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_failing_rename_takes_the_earlier_ones_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = [change(tmp_path / "added.py", old=None), *prepare(tmp_path, 3)]
    replace = os.replace

    def failing(source: Path, target: Path) -> None:
        if target.name == "1.py":
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(writer.os, "replace", failing)
    with pytest.raises(WriteError, match=r"1\.py: No space left"):
        write_all(changes, tmp_path)
    assert names(tmp_path) == ["0.py", "1.py", "2.py"]
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {OLD}
