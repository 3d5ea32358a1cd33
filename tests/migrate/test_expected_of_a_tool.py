"""What people expect of a maintained tool: stdin, completion, schemas, suggestions, `python -m`."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from report_schema import SCHEMA
from to_fsdp2.migrate.api import scan
from to_fsdp2.transforms.findings import UserError
from to_fsdp2.transforms.rule import all_rules

Command = Callable[..., tuple[int, bytes, str]]
Real = Callable[..., tuple[int, str, str]]

SAFE = "model = FSDP(net)\n"


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    return lambda data: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_apply_turns_stdin_into_stdout(command: Command, stdin: Callable[[bytes], None], tmp_path: Path) -> None:
    stdin("# naïve\r\n".encode() + SAFE.encode())
    code, out, err = command("apply", "-", "--stdin-filename", "train.py")
    assert (code, out) == (0, "# naïve\r\nmodel = fully_shard(net)\n".encode())
    assert err == "1 file, 1 to change, 1 safe, 0 review, 0 manual, 0 failed\n"
    assert list(tmp_path.iterdir()) == []
    for untouched in (b"x = 1\n", b"FSDP(\n"):
        stdin(untouched)
        assert command("apply", "-")[1] == untouched


def test_the_text_of_stdin_counts_and_not_that_of_the_file(
    command: Command, stdin: Callable[[bytes], None], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("FSDP(\n")
    stdin(SAFE.encode())
    code, out, _ = command("diff", "-", "--stdin-filename", "train.py")
    assert code == 1
    assert out.startswith(b"diff --git a/train.py b/train.py\n")
    stdin((SAFE.strip() + "  # manual\n").encode())
    document = json.loads(command("check", "-", "--stdin-filename", "pkg/train.py", "--format", "json")[1])
    jsonschema.validate(document, SCHEMA)
    assert [finding["file"] for finding in document["findings"]] == ["pkg/train.py"]
    stdin(b"FSDP(\n")
    code, out, _ = command("scan", "-")
    assert code == 2
    assert b"stdin.py:1" in out


def test_settings_are_those_of_the_named_file(command: Command, stdin: Callable[[bytes], None], tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "pyproject.toml").write_text('[tool.to-fsdp2]\ntarget-torch = "2.7"\n')
    stdin(SAFE.encode())
    document = json.loads(command("scan", "-", "--stdin-filename", "pkg/a.py", "--format", "json")[1])
    assert document["target_torch"] == "2.7"


def test_stdin_stands_alone(command: Command, tmp_path: Path) -> None:
    assert command("scan", "-", ".")[0] == 64
    assert command("scan", "--stdin-filename", "a.py", ".")[0] == 64


def test_a_helper_module_that_stdin_would_need_is_named(real: Real, stdin: Callable[[bytes], None]) -> None:
    stdin(b"from torch.nn.parallel import DistributedDataParallel as DDP\ndef f(net): return DDP(net)\n")
    code, out, err = real("apply", "-")
    assert code == 0
    assert "from fsdp2_helpers import shard_like_ddp" in out
    assert "the text needs fsdp2_helpers.py" in err


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["rules", "fs3O1"], "FS301"),
        (["scan", "--select", "FS3O1"], "FS301"),
        (["scna"], "'scan'"),
        (["scan", "--fromat", "json"], "--format"),
    ],
)
def test_misspelled_names_are_answered_with_what_was_meant(command: Command, arguments: list[str], meant: str) -> None:
    code, _, err = command(*arguments)
    assert code == 64
    assert meant in err


def test_rules_as_data(command: Command) -> None:
    document = json.loads(command("rules", "--format", "json")[1])
    assert (document["tool"], document["schema"], document["kind"]) == ("to-fsdp2", 2, "rules")
    assert [rule["id"] for rule in document["rules"]] == [rule.id for rule in all_rules()]
    [rule] = json.loads(command("rules", "fs301", "--format", "json")[1])["rules"]
    assert rule["id"] == "FS301"
    assert any(example["before"] != example["after"] for example in rule["examples"])


def test_other_programs_call_it(real: Real, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from torch.nn.parallel import DistributedDataParallel as DDP\nmodel = DDP(net)\n")
    report = scan([tmp_path / "train.py"], ddp="shard")
    assert {finding.rule for finding in report.findings} >= {"FS120"}
    assert {file for file, patch in report.patches if b"shard_like_ddp" in patch} == {"train.py", "fsdp2_helpers.py"}
    with pytest.raises(UserError, match="no such file"):
        scan(["gone.py"])


def test_the_package_runs_and_shells_complete_it(tmp_path: Path) -> None:
    def run(**environment: str) -> str:
        command = [sys.executable, "-m", "to_fsdp2", *([] if environment else ["--version"])]
        return subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **environment}, check=True, capture_output=True, text=True
        ).stdout

    assert run().startswith("to-fsdp2 ")
    offered = run(COMP_WORDS="to-fsdp2 rules FS30", COMP_CWORD="2", _TO_FSDP2_COMPLETE="complete_bash").split()
    assert offered == [rule.id for rule in all_rules() if rule.id.startswith("FS30")]
