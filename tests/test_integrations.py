"""The CI action and the pre-commit hooks do what they say."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
HOOKS = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
OLD_CODE = "from torch.nn.parallel import DistributedDataParallel as DDP\nmodel = DDP(net)\n"


@dataclass
class Step:
    """What a step of the action has left."""

    code: int
    outputs: dict[str, str]
    summary: str
    stdout: str


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    return folder


@pytest.fixture
def runner(tmp_path: Path) -> Path:
    """The folder of a runner, with the tool installed."""
    folder = tmp_path / "runner"
    program(folder / "to-fsdp2" / "bin" / "to-fsdp2", f'exec {shlex.quote(sys.executable)} -m to_fsdp2 "$@"')
    return folder


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def run_step(name: str, folder: Path, runner: Path, **values: str) -> Step:
    """Run a step as a runner would; `values` are what its expressions give, by the step's own variables."""
    [step] = [step for step in ACTION["runs"]["steps"] if step.get("id") == name]
    for file in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"):
        (runner / file).write_text("")
    result = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder,
        env={
            "PATH": f"{runner / 'bin'}:/usr/bin:/bin",
            "HOME": str(runner),
            "RUNNER_TEMP": str(runner),
            **{variable: values.get(variable, default_of(text)) for variable, text in step["env"].items()},
            **{file: str(runner / file) for file in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")},
        },
        capture_output=True,
        text=True,
        check=False,
    )
    outputs = dict(line.split("=", 1) for line in (runner / "GITHUB_OUTPUT").read_text().splitlines())
    return Step(result.returncode, outputs, (runner / "GITHUB_STEP_SUMMARY").read_text(), result.stdout)


def default_of(expression: str) -> str:
    name = expression.replace("${{ inputs.", "").replace(" }}", "")
    return ACTION["inputs"].get(name, {}).get("default", "")


def result_of(folder: Path, runner: Path, checked: str, verified: str = "") -> int:
    return run_step("result", folder, runner, CHECKED=checked, VERIFIED=verified).code


BACKEND = """\
import zipfile


def build_wheel(folder, *_):
    name = "nothing-1-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.writestr("nothing-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: nothing\\nVersion: 1\\n")
        wheel.writestr("nothing-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("nothing-1.dist-info/RECORD", "")
    return name
"""


@pytest.mark.slow
@pytest.mark.parametrize("verify", ["", "train.py"])
def test_what_the_job_has_installed_is_there_for_verify(repository: Path, tmp_path: Path, verify: str) -> None:
    """Also where the job's Python is a virtual environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "job")], check=True)
    [packages] = (tmp_path / "job" / "lib").glob("python*/site-packages")
    (packages / "only_in_the_job.py").touch()
    action = tmp_path / "action"
    action.mkdir()
    (action / "constraints.txt").touch()
    (action / "backend.py").write_text(BACKEND)
    (action / "pyproject.toml").write_text('[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n')
    runner = tmp_path / "runner"
    runner.mkdir()
    [step] = [step for step in ACTION["runs"]["steps"] if step.get("id") == "install"]
    environment = {"PATH": f"{tmp_path / 'job' / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path), "VERIFY": verify}
    environment |= {"RUNNER_TEMP": str(runner), "GITHUB_ACTION_PATH": str(action)}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    subprocess.run(command, cwd=repository, env=environment, check=True)
    python = [str(runner / "to-fsdp2" / "bin" / "python"), "-c", "import only_in_the_job"]
    assert (subprocess.run(python, capture_output=True, check=False).returncode == 0) == bool(verify)


def test_the_action_fails_on_findings_and_lists_them(repository: Path, runner: Path) -> None:
    (repository / "train.py").write_text(OLD_CODE)
    step = run_step("check", repository, runner, SARIF="report.sarif")
    assert step.outputs == {"exit-code": "1"}
    assert "train.py" in step.summary
    assert "::notice file=train.py,line=2," in step.stdout
    [run] = json.loads((repository / "report.sarif").read_text())["runs"]
    assert run["results"]
    assert result_of(repository, runner, "1") == 1


def test_the_action_passes_clean_code(repository: Path, runner: Path) -> None:
    (repository / "train.py").write_text("x = 1\n")
    (repository / "old.py").write_text(OLD_CODE)
    step = run_step("check", repository, runner, PATHS="train.py", OPTIONS="--exclude old.py")
    assert (step.code, step.outputs) == (0, {"exit-code": "0"})
    assert [result_of(repository, runner, *codes) for codes in (("0",), ("0", "0"), ("0", "2"), ("3", "1"))] == [0, 0, 2, 3]


def test_the_actions_inputs_are_no_shell_code(repository: Path, runner: Path) -> None:
    (repository / "train.py").write_text("x = 1\n")
    step = run_step("check", repository, runner, PATHS="$(touch hacked) `touch hacked`")
    assert step.outputs == {"exit-code": "64"}
    run_step("verify", repository, runner, VERIFY="$(touch hacked)", OPTIONS="`touch hacked`", OLD="$(touch hacked)")
    assert not (repository / "hacked").exists()


def test_the_action_verifies_and_passes_the_code_on(repository: Path, runner: Path) -> None:
    program(runner / "to-fsdp2" / "bin" / "to-fsdp2", 'echo "ran $*"; exit 1')
    step = run_step("verify", repository, runner, VERIFY="train.py --steps 8", OPTIONS="--nproc 4", OLD="abc")
    assert step.outputs == {"exit-code": "1"}
    assert "    ran verify --old abc --nproc 4 -- train.py --steps 8" in step.summary
    assert result_of(repository, runner, "0", step.outputs["exit-code"]) == 1


@pytest.mark.parametrize(("there", "asked"), [("", "-X POST comments/of/5"), ("77", "-X PATCH repos/o/r/issues/comments/77")])
def test_the_action_writes_one_comment(repository: Path, runner: Path, there: str, asked: str) -> None:
    program(runner / "bin" / "gh", f'case "$*" in *--jq*) echo {there} ;; *) echo "$*" >> "$RUNNER_TEMP/asked" ;; esac')
    (runner / "to-fsdp2.md").write_text("x" * 100_000)
    step = run_step("comment", repository, runner, GH_TOKEN="t", COMMENTS="comments/of/5", REPOSITORY="repos/o/r")
    assert step.code == 0
    assert asked in (runner / "asked").read_text()
    body = (runner / "to-fsdp2-comment.md").read_text()
    assert body.startswith("<!-- to-fsdp2 -->\nxxx")
    assert len(body) < 65_536


def test_a_token_that_may_only_read_fails_nothing(repository: Path, runner: Path) -> None:
    program(runner / "bin" / "gh", 'case "$*" in *--jq*) ;; *) exit 1 ;; esac')
    (runner / "to-fsdp2.md").write_text("x")
    step = run_step("comment", repository, runner, GH_TOKEN="t", COMMENTS="c", REPOSITORY="r")
    assert step.code == 0
    assert "::warning::" in step.stdout


def test_every_version_that_the_action_installs_is_pinned() -> None:
    """Of what `pip install` brings beside the tool, on this platform."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.partition("==")[0].strip()) for line in lines if "==" in line}
    wanted, seen = ["to-fsdp2"], set()
    while wanted:
        name = wanted.pop()
        if name not in seen:
            seen.add(name)
            needs = [Requirement(line) for line in requires(name) or []]
            wanted += [canonicalize_name(n.name) for n in needs if n.marker is None or n.marker.evaluate({"extra": ""})]
    assert seen - {"to-fsdp2"} <= pinned


def hook(name: str, folder: Path) -> int:
    entry, *arguments = HOOKS[name]["entry"].split()
    assert entry == "to-fsdp2"
    assert HOOKS[name]["pass_filenames"] is False
    environment = {**os.environ, "XDG_STATE_HOME": str(folder.parent / "state")}
    return subprocess.run([sys.executable, "-m", "to_fsdp2", *arguments], cwd=folder, env=environment, check=False).returncode


def test_the_hook_runs_the_check(repository: Path) -> None:
    (repository / "train.py").write_text(OLD_CODE)
    assert hook("to-fsdp2-check", repository) == 1
    assert (repository / "train.py").read_text() == OLD_CODE


def test_the_other_hook_mends_what_is_to_be_committed(repository: Path) -> None:
    (repository / "train.py").write_text(OLD_CODE)
    for arguments in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *arguments], cwd=repository, check=True)
    hook("to-fsdp2-fix", repository)
    assert "DistributedDataParallel" not in (repository / "train.py").read_text()
    assert hook("to-fsdp2-fix", repository) == 0


@pytest.mark.skipif(shutil.which("bash") is None, reason="the script is bash")
def test_the_ci_script_parses() -> None:
    assert subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], check=False).returncode == 0
