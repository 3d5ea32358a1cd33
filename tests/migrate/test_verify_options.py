"""What `to-fsdp2 verify` and `demo` hand to the harness."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from to_fsdp2.corpus import cases
from to_fsdp2.equivalence import command as verification
from to_fsdp2.equivalence.options import UsageError, VerifyOptions

Command = Callable[..., tuple[int, bytes, str]]


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[VerifyOptions]:
    options: list[VerifyOptions] = []

    def verify(given: VerifyOptions, _: object = None) -> int:
        options.append(given)
        return 1

    monkeypatch.setattr(verification, "verify", verify)
    return options


def test_defaults(command: Command, received: list[VerifyOptions]) -> None:
    assert command("verify", "--", "train.py", "--lr", "1")[0] == 1
    assert received == [VerifyOptions(command=["train.py", "--lr", "1"])]


@pytest.mark.parametrize("separator", [["--"], []])
def test_options_of_the_script_are_its_own(
    command: Command, received: list[VerifyOptions], separator: list[str]
) -> None:
    command("verify", "--nproc", "4", *separator, "train.py", "--nproc", "8", "-m", "--", "x")
    assert received == [VerifyOptions(nproc=4, command=["train.py", "--nproc", "8", "-m", "--", "x"])]


def test_a_module(command: Command, received: list[VerifyOptions]) -> None:
    command("verify", "--", "-m", "pkg.train", "--steps", "3")
    assert received == [VerifyOptions(command=["-m", "pkg.train", "--steps", "3"])]


def test_every_option(command: Command, received: list[VerifyOptions]) -> None:
    arguments = [
        "--old",
        "a",
        "--new",
        "b",
        "--nproc",
        "4",
        "--nnodes",
        "2",
        "--node-rank",
        "1",
        "--rdzv-endpoint",
        "h:1",
        "--bisect",
        "--launcher",
        "python",
        "--report",
        "r",
        "--format",
        "json",
        "--timeout",
        "60",
        "--mode",
        "exact",
        "--device",
        "cpu",
        "--record",
        "first:3",
        "--resume",
        "--resume-arguments=--resume={checkpoint}",
        "--control=--accumulation=1",
        "--untracked",
        "link",
        "--in-place",
    ]
    command("verify", *arguments, "--", "train.py")
    assert received == [
        VerifyOptions(
            command=["train.py"],
            old="a",
            new="b",
            nproc=4,
            nnodes="2",
            node_rank=1,
            rdzv_endpoint="h:1",
            bisect=True,
            launcher="python",
            report=Path("r"),
            format="json",
            timeout=60.0,
            mode="exact",
            device="cpu",
            record="first:3",
            resume=True,
            resume_arguments="--resume={checkpoint}",
            control="--accumulation=1",
            untracked="link",
            in_place=True,
        )
    ]


def test_a_wrong_request_is_a_usage_error(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise UsageError("no such side")

    monkeypatch.setattr(verification, "verify", refuse)
    code, _, err = command("verify", "--", "train.py")
    assert (code, err) == (64, "to-fsdp2: no such side\n")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bundled").mkdir()
    (tmp_path / "bundled" / "train.py").write_text("model = FSDP(net)\n")
    monkeypatch.setattr(cases, "DEMO_FOLDER", tmp_path / "bundled")
    return tmp_path / "bundled"


def test_demo(command: Command, received: list[VerifyOptions], repository: Path, tmp_path: Path) -> None:
    code, out, err = command("demo", "--directory", "tour")
    folder = tmp_path / "tour"
    assert code == 1
    assert (folder / "old" / "train.py").read_text() == "model = FSDP(net)\n"
    assert (folder / "new" / "train.py").read_text() == "model = fully_shard(net)\n"
    assert b"+model = fully_shard(net)" in (folder / "migration.patch").read_bytes()
    assert "FS101" in (folder / "migration.html").read_text()
    assert b"train.py:1:9 safe FS101" in out
    assert b"train.py: 1 file changed" in out
    assert str(folder / "migration.html") in err
    [options] = received
    assert (options.old, options.new) == (str(folder / "old"), str(folder / "new"))
    assert (options.nproc, options.device, options.report) == (2, "cpu", folder / "verdict")


def test_demo_writes_into_empty_folders_only(command: Command, repository: Path) -> None:
    assert command("demo", "--directory", str(repository))[0] == 64


def test_demo_without_torch(command: Command, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else find_spec(name, *rest)
    )
    code, _, err = command("demo", "--directory", "tour")
    assert code == 2
    assert "to-fsdp2[verify]" in err
