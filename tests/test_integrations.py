"""The CI action and the pre-commit hook do what they say."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
OLD_CODE = "from torch.nn.parallel import DistributedDataParallel as DDP\nmodel = DDP(net)\n"


def run_check_step(folder: Path, **inputs: str) -> tuple[int, dict[str, str], str]:
    """Run the action's check as a runner would; returns (exit code, outputs, job summary)."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    [step] = [step for step in action["runs"]["steps"] if step.get("id") == "check"]
    values = {name: given["default"] for name, given in action["inputs"].items()} | inputs
    environment = {name: text.replace("${{ inputs.", "").replace(" }}", "") for name, text in step["env"].items()}
    runner = folder.parent / "runner"
    command = runner / "to-fsdp2" / "bin" / "to-fsdp2"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m to_fsdp2.migrate "$@"\n')
    command.chmod(0o755)
    files = {name: str(runner / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        Path(file).touch()
    result = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder,
        env={
            "PATH": "/usr/bin:/bin",
            "RUNNER_TEMP": str(runner),
            **{name: values[source] for name, source in environment.items()},
            **files,
        },
        capture_output=True,
        check=False,
    )
    outputs = dict(line.split("=", 1) for line in Path(files["GITHUB_OUTPUT"]).read_text().splitlines())
    return result.returncode, outputs, Path(files["GITHUB_STEP_SUMMARY"]).read_text()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    return folder


def test_the_action_fails_on_findings_and_lists_them(repository: Path) -> None:
    (repository / "train.py").write_text(OLD_CODE)
    code, outputs, summary = run_check_step(repository, sarif="report.sarif")
    assert (code, outputs) == (1, {"exit-code": "1"})
    assert "train.py" in summary
    [run] = json.loads((repository / "report.sarif").read_text())["runs"]
    assert run["results"]


def test_the_action_passes_clean_code(repository: Path) -> None:
    (repository / "train.py").write_text("x = 1\n")
    (repository / "old.py").write_text(OLD_CODE)
    code, outputs, _ = run_check_step(repository, paths="train.py", options="--exclude old.py")
    assert (code, outputs) == (0, {"exit-code": "0"})


def test_the_actions_inputs_are_no_shell_code(repository: Path) -> None:
    (repository / "train.py").write_text("x = 1\n")
    code, outputs, _ = run_check_step(repository, paths="$(touch hacked) `touch hacked`")
    assert (code, outputs) == (64, {"exit-code": "64"})
    assert not (repository / "hacked").exists()


def test_the_hook_runs_the_check(repository: Path) -> None:
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    program, *arguments = hook["entry"].split()
    assert program == "to-fsdp2"
    assert hook["pass_filenames"] is False
    (repository / "train.py").write_text(OLD_CODE)
    result = subprocess.run([sys.executable, "-m", "to_fsdp2.migrate", *arguments], cwd=repository, check=False)
    assert result.returncode == 1


@pytest.mark.skipif(shutil.which("bash") is None, reason="the script is bash")
def test_the_ci_script_parses() -> None:
    assert subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], check=False).returncode == 0
