"""The commands from outside: exit codes, streams, files."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from repositories import commit_all, git
from to_fsdp2.migrate import pipeline, worker
from to_fsdp2.migrate.__main__ import run
from to_fsdp2.transforms.findings import FileError

Command = Callable[..., tuple[int, bytes, str]]

SAFE = "model = FSDP(net)\n"
REVIEW = "model = FSDP(net)  # review\n"
MANUAL = "model = FSDP(net)  # manual\n"
OK = "model = FSDP(net)  # ok\n"
BROKEN = "model = FSDP(net\n"


def write(folder: Path, **files: str | bytes) -> None:
    for name, text in files.items():
        (folder / f"{name}.py").write_bytes(text if isinstance(text, bytes) else text.encode())


EXIT_CODES = [
    # files, then the codes of scan, diff, apply, check
    ({"a": "x = 1\n"}, (0, 0, 0, 0)),
    ({"a": OK}, (0, 0, 0, 0)),
    ({"a": SAFE}, (0, 1, 0, 1)),
    ({"a": REVIEW}, (0, 1, 1, 1)),
    ({"a": MANUAL}, (0, 0, 1, 1)),
    ({"a": SAFE, "b": BROKEN}, (2, 3, 2, 3)),
    ({"a": "import b\nx = 'FSDP'\n", "b": "def f(:\n"}, (2, 2, 2, 2)),
    ({"a": MANUAL, "b": BROKEN}, (2, 2, 3, 3)),
    ({"a": "model = FSDP(net)  # manual # to-fsdp2: ignore[FS101] fine\n"}, (0, 0, 0, 0)),
]


@pytest.mark.parametrize(("files", "codes"), EXIT_CODES)
def test_exit_codes(command: Command, tmp_path: Path, files: dict[str, str], codes: tuple[int, ...]) -> None:
    write(tmp_path, **files)
    # apply last, for it changes what the others look at
    for name, code in zip(("scan", "diff", "check", "apply"), (*codes[:2], codes[3], codes[2]), strict=True):
        assert command(name)[0] == code, name


@pytest.mark.parametrize(
    "arguments",
    [
        ["scan", "--no-such-option"],
        ["no-such-command"],
        ["scan", "missing.py"],
        ["scan", "--format", "xml"],
        ["scan", "--jobs", "0"],
        ["scan", "--target-torch", "2.3"],
        ["diff", "--level", "manual"],
        ["scan", "--select", "FS999"],
        ["check", "--ignore", "FS101,XY1"],
        ["rules", "FS999"],
        ["scan", "-o", "missing/report.json"],
        ["diff", "--checkpoint", "dcp"],
        ["diff", "--helpers", "missing"],
        ["diff", "--helpers", "/"],
        ["verify", "--nproc", "none"],
    ],
)
def test_usage_errors(command: Command, tmp_path: Path, arguments: list[str]) -> None:
    write(tmp_path, a=SAFE)
    code, _, err = command(*arguments)
    assert code == 64
    assert err.startswith("to-fsdp2: ")
    assert "Traceback" not in err
    assert (tmp_path / "a.py").read_text() == SAFE


def test_wrong_configuration_is_a_usage_error(command: Command, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.to-fsdp2]\nddp = 'both'\n")
    code, _, err = command("scan")
    assert code == 64
    assert "pyproject.toml:2: ddp is 'both'" in err


def test_internal_errors_are_one_line(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("lost")

    write(tmp_path, a=SAFE)
    monkeypatch.setattr(pipeline, "analyse", fail)
    code, out, err = command("scan")
    assert (code, out) == (70, b"")
    assert err.count("\n") == 1
    assert "KeyError: 'lost'" in err
    assert "report" in err


def test_interruption(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    write(tmp_path, a=SAFE)
    monkeypatch.setattr(pipeline, "analyse", interrupt)
    assert command("apply", "--allow-dirty")[0] == 130
    assert (tmp_path / "a.py").read_text() == SAFE


@pytest.mark.parametrize("arguments", [[], ["--help"], ["scan", "--help"], ["--version"]])
def test_help(command: Command, arguments: list[str]) -> None:
    code, out, err = command(*arguments)
    assert code == 0
    assert b"to-fsdp2" in out
    assert not err


@pytest.mark.parametrize("name", ["scan", "diff", "apply", "check", "verify"])
def test_help_documents_the_exit_codes(command: Command, name: str) -> None:
    out = command(name, "--help")[1].decode()
    assert "Exit codes" in out
    assert all(code in out for code in ("64", "70", "130"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["a.py", "--format", "json"],
        ["--format", "json", "a.py"],
        ["--format=json", "--", "a.py"],
        ["b.py", "--format", "json", "a.py"],
    ],
)
def test_options_in_any_order(command: Command, tmp_path: Path, arguments: list[str]) -> None:
    write(tmp_path, a=SAFE, b="import a\n")
    code, out, _ = command("scan", *arguments)
    assert code == 0
    assert [finding["file"] for finding in json.loads(out)["findings"]] == ["a.py"]


def test_diff_is_a_patch_that_does_what_apply_does(command: Command, tmp_path: Path) -> None:
    texts = {
        "crlf": b"# FSDP\r\nmodel = FSDP(net)\r\nx = 1",
        "latin": "# coding: latin-1\nx = 'é'\nmodel = FSDP('ü')\n".encode("latin-1"),
        "bom": b"\xef\xbb\xbfmodel = FSDP(net)",
        "mixed": b"if x:\n\tmodel = FSDP(\r\n\t\tnet)\n",
        "untouched": b"import crlf\r\nx = 1   \n\n",
    }
    write(tmp_path, **texts)
    commit_all(tmp_path)
    code, patch, err = command("diff")
    assert code == 1
    assert "5 files, 4 to change, 4 safe, 0 review, 0 manual, 0 failed" in err
    assert git(tmp_path, "apply", "-", stdin=patch).returncode == 0
    by_git = {name: (tmp_path / f"{name}.py").read_bytes() for name in texts}
    assert by_git == {name: text.replace(b"FSDP(", b"fully_shard(") for name, text in texts.items()}
    git(tmp_path, "checkout", "-q", ".")
    code, _, err = command("apply")
    assert code == 0
    assert {name: (tmp_path / f"{name}.py").read_bytes() for name in texts} == by_git
    assert command("diff") == (0, b"", "5 files, 0 to change, 0 safe, 0 review, 0 manual, 0 failed\n")
    undo = err.partition("to undo: ")[2]
    assert os.system(undo) == 0
    assert {name: (tmp_path / f"{name}.py").read_bytes() for name in texts} == texts


def test_apply_refuses_a_dirty_tree_before_any_work(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, a=SAFE, b="x = 1\n")
    (tmp_path / "notes.txt").write_text("tracked")
    commit_all(tmp_path)
    (tmp_path / "untracked.txt").write_text("does not matter")
    analyse = pipeline.analyse
    monkeypatch.setattr(pipeline, "analyse", None)
    for file in ("notes.txt", "b.py", "c.py"):
        before = (tmp_path / file).read_bytes() if (tmp_path / file).exists() else None
        (tmp_path / file).write_text("y = 2\n")
        code, out, err = command("apply")
        assert (code, out) == (64, b"")
        assert f"uncommitted changes in {file}" in err
        assert "--allow-dirty" in err
        if before is None:
            (tmp_path / file).unlink()
        else:
            (tmp_path / file).write_bytes(before)
    monkeypatch.setattr(pipeline, "analyse", analyse)
    assert command("apply")[0] == 0


def test_allow_dirty_says_how_to_undo(command: Command, tmp_path: Path) -> None:
    write(tmp_path, a=SAFE)
    commit_all(tmp_path)
    write(tmp_path, a="y = 2\n" + SAFE)
    code, _, err = command("apply", "--allow-dirty")
    assert code == 0
    assert (tmp_path / "a.py").read_text() == "y = 2\nmodel = fully_shard(net)\n"
    assert os.system(err.partition("to undo: ")[2]) == 0
    assert (tmp_path / "a.py").read_text() == "y = 2\n" + SAFE


def test_outside_of_a_repository(command: Command, tmp_path: Path) -> None:
    write(tmp_path, a=SAFE)
    code, _, err = command("apply")
    assert code == 0
    assert err.startswith("the reverse patch is ")
    assert os.system(err.partition("to undo: ")[2]) == 0
    assert (tmp_path / "a.py").read_text() == SAFE


def test_a_broken_repository_is_refused(command: Command, tmp_path: Path) -> None:
    write(tmp_path, a=SAFE)
    (tmp_path / ".git").mkdir()
    code, _, err = command("apply")
    assert code == 64
    assert "git cannot tell" in err
    assert (tmp_path / "a.py").read_text() == SAFE


def test_a_read_only_file_stops_all_writing(command: Command, tmp_path: Path) -> None:
    write(tmp_path, a=SAFE, b="import a\n" + SAFE)
    (tmp_path / "b.py").chmod(0o444)
    code, out, _ = command("apply")
    assert code == 2
    assert b"b.py  is read-only; nothing was written" in out
    assert (tmp_path / "a.py").read_text() == SAFE


def test_a_link_is_written_through(command: Command, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    write(tmp_path / "shared", real=SAFE)
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "link.py").symlink_to("../shared/real.py")
    assert command("apply", "repo")[0] == 0
    assert (tmp_path / "repo" / "link.py").is_symlink()
    assert (tmp_path / "shared" / "real.py").read_text() == "model = fully_shard(net)\n"


def test_files_in_the_subfolder_of_a_repository(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pkg").mkdir()
    write(tmp_path / "pkg", a=SAFE)
    commit_all(tmp_path)
    monkeypatch.chdir(tmp_path / "pkg")
    assert json.loads(command("scan", "--format", "json")[1])["findings"][0]["file"] == "a.py"
    patch = command("diff")[1]
    assert git(tmp_path / "pkg", "apply", "-", stdin=patch).returncode == 0
    assert (tmp_path / "pkg" / "a.py").read_text() == "model = fully_shard(net)\n"


def test_connected_files_that_nobody_named_are_named(command: Command, tmp_path: Path) -> None:
    write(tmp_path, wrap=SAFE, user="import wrap\n", alone="x = 1\n", excluded="import wrap\n")
    commit_all(tmp_path)
    for name in ("scan", "diff"):
        err = command(name, "wrap.py", "--exclude", "excluded.py")[2]
        assert "not looked at: 1 file outside of the named paths, connected by imports (user.py)" in err
        assert "not looked at" not in command(name, ".")[2]
        assert "not looked at" not in command(name, "alone.py")[2]


def test_output_goes_to_the_file(command: Command, tmp_path: Path) -> None:
    write(tmp_path, a=SAFE)
    for form in ("text", "json", "markdown", "sarif", "html"):
        code, out, err = command("scan", "--all", "--format", form, "-o", f"report.{form}")
        assert (code, out) == (0, b"")
        assert "1 safe" in err
        assert "FS101" in (tmp_path / f"report.{form}").read_text()
    assert command("diff", "-o", "migration.patch")[:2] == (1, b"")
    assert (tmp_path / "migration.patch").read_bytes().startswith(b"diff --git a/a.py b/a.py\n")


def test_output_to_a_pipe_leaves_the_pipe(command: Command, tmp_path: Path) -> None:
    write(tmp_path, a=SAFE)
    os.mkfifo(tmp_path / "pipe")
    with os.fdopen(os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        assert command("diff", "-o", "pipe")[0] == 1
        assert reader.read().startswith(b"diff --git")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert command("scan", "-o", ".")[0] == 64


def test_in_several_processes(command: Command, tmp_path: Path) -> None:
    padding = "# " + "x" * 100_000 + "\n"
    write(tmp_path, **{f"m{number}": padding + SAFE for number in range(12)})
    one = command("scan", "--format", "json", "--jobs", "1")
    assert len(json.loads(one[1])["findings"]) == 12
    assert command("scan", "--format", "json", "--jobs", "3") == one


def test_a_file_that_crashes_the_parser_is_one_error(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract = worker.extract

    def crashing(source):
        if source.path == "m5.py":
            os._exit(11)
        if source.path == "m6.py":
            raise KeyError("lost")
        return extract(source)

    monkeypatch.setattr(worker, "extract", crashing)
    padding = "# " + "x" * 100_000 + "\n"
    write(tmp_path, **{f"m{number}": padding + SAFE for number in range(10)})
    code, out, _ = command("scan", "--format", "json", "--jobs", "2")
    document = json.loads(out)
    assert code == 2
    assert [error["file"] for error in document["errors"]] == ["m5.py", "m6.py"]
    assert "crashed" in document["errors"][0]["message"]
    assert "KeyError: 'lost'" in document["errors"][1]["message"]
    assert len(document["findings"]) == 8


def test_only_connected_files_are_parsed(command: Command, tmp_path: Path) -> None:
    write(tmp_path, a=SAFE, relay="import a\n", user="import relay\n", alone="def f(:\n")
    document = json.loads(command("scan", "--format", "json")[1])
    assert document["files"] == {"seen": 4, "parsed": 3, "changed": 1, "failed": 0}


def test_huge_files_and_notebooks_are_named(command: Command, tmp_path: Path) -> None:
    write(tmp_path, huge=SAFE + "x = 1\n" * 400_000, large_data="x = 1\n" * 400_000)
    (tmp_path / "train.ipynb").write_text('{"cells": ["from torch.nn.parallel import DistributedDataParallel"]}')
    (tmp_path / "plot.ipynb").write_text('{"cells": ["iVBORw0KDDP"]}')
    code, out, _ = command("scan", "--format", "json")
    assert code == 2
    errors = json.loads(out)["errors"]
    assert [error["file"] for error in errors] == ["huge.py", "train.ipynb"]


def test_a_rewrite_that_fails_leaves_everything(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    analyse = pipeline.analyse

    def broken(*arguments):
        analysis = analyse(*arguments)
        analysis.texts["b.py"] += "# é"
        return analysis

    monkeypatch.setattr(pipeline, "analyse", broken)
    write(tmp_path, a=SAFE, b="# coding: ascii\nimport a\n" + SAFE)
    code, out, _ = command("apply", "--format", "json")
    assert code == 2
    assert "nothing is rewritten" in json.loads(out)["errors"][0]["message"]
    assert (tmp_path / "a.py").read_text() == SAFE


def test_a_reader_that_goes_away(tmp_path: Path) -> None:
    write(tmp_path, **{f"m{number}": SAFE * 2000 for number in range(3)})
    program = f"{sys.executable} -m to_fsdp2.migrate"
    assert os.system(f"cd {tmp_path} && {program} scan --format json 2>err | head -c 10 >/dev/null") == 0
    assert "Traceback" not in (tmp_path / "err").read_text()


def test_errors_of_the_analysis_are_reported(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    analyse = pipeline.analyse

    def with_error(*arguments):
        analysis = analyse(*arguments)
        analysis.errors.append(FileError("a.py", 1, "form feed before code"))
        return analysis

    monkeypatch.setattr(pipeline, "analyse", with_error)
    write(tmp_path, a=SAFE)
    code, out, _ = command("scan")
    assert code == 2
    assert b"a.py:1  form feed before code" in out


def test_the_module_runs_too(capfd: pytest.CaptureFixture[str]) -> None:
    assert os.system(f"{sys.executable} -m to_fsdp2.migrate --version") == 0
    assert capfd.readouterr().out.startswith("to-fsdp2 ")
    assert run(["--version"]) == 0


def test_small_things_people_expect(command: Command) -> None:
    assert command("-V") == command("--version")
    assert command("rules", "fs301") == command("rules", "FS301")
