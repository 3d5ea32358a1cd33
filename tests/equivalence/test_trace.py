"""A program of which the text shows little: its configuration names what is made, and a library makes it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FIXTURE = Path(__file__).parent.parent / "fixtures" / "traced"
ENGINE = "tasks/engine.py"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def to_fsdp2(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(FIXTURE / "library")}
    command = [sys.executable, "-m", "to_fsdp2.migrate", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def found(folder: Path, *arguments: str) -> dict[tuple[str, int, str], dict[str, Any]]:
    """The findings of a scan that are rewritten, by file, line and rule."""
    document = json.loads(to_fsdp2(folder, "scan", "--format", "json", *arguments).stdout)
    return {(f["file"], f["line"], f["rule"]): f for f in document["findings"] if f["form"] in ("idiom", "fallback")}


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traced") / "program"
    shutil.copytree(FIXTURE / "program", folder, ignore=shutil.ignore_patterns("__pycache__"))
    result = to_fsdp2(folder, "trace", "-o", "../trace.json", "--", "main.py")
    assert result.returncode == 0, result.stderr
    assert "tasks/wrapping.py:12 FSDP1 around tasks.models.Encoder with 2 tasks.models.Layer" in result.stdout
    return folder


@pytest.fixture
def program(traced: Path, tmp_path: Path) -> Path:
    shutil.copy(traced.parent / "trace.json", tmp_path)
    return shutil.copytree(traced, tmp_path / "program", ignore=shutil.ignore_patterns("__pycache__"))


def line_of(text: str, occurrence: int = 0) -> int:
    lines = (FIXTURE / "program" / ENGINE).read_text().splitlines()
    return [number for number, line in enumerate(lines, start=1) if text in line][occurrence]


def test_a_trace_holds_what_the_run_did(traced: Path) -> None:
    document = json.loads((traced.parent / "trace.json").read_text())
    assert (document["kind"], document["schema"], document["ranks"], document["steps"]) == ("trace", 3, 2, 3)
    fsdp, ddp = document["wraps"]
    assert (fsdp["wrapper"], fsdp["units"], fsdp["without_gradient"]) == ("FSDP1", {"tasks.models.Layer": 2}, [])
    assert fsdp["arguments"]["use_orig_params"] == "True" and "Layer" in fsdp["arguments"]["auto_wrap_policy"]
    assert (ddp["wrapper"], ddp["module"], ddp["without_gradient"]) == ("DDP", "tasks.models.Critic", ["unused"])
    assert document["order"] == ["wrap 0", "wrap 1", "optimizer 0"]
    assert document["optimizers"][0]["wraps"] == [0]
    assert [s["place"] for s in document["state_dicts"]] == [f"{ENGINE}:{line_of('torch.save')}"]
    assert document["files"][ENGINE]["lines_of_some_ranks"] == {"0": str(line_of("torch.save"))}
    held = {(value["file"], value["expression"]): value["held"] for value in document["values"]}
    assert held[ENGINE, "self.model"] == [{"wrap": 0}]
    assert held["main.py", "optimizer"] == [{"optimizer": 0}]


def test_what_a_run_has_shown_becomes_idioms_to_review_and_nothing_else_does(program: Path) -> None:
    before, after = found(program), found(program, "--trace", "../trace.json")

    reached, unreached = (ENGINE, line_of("clip_grad_norm_"), "FS303"), (ENGINE, line_of("clip_grad_norm_", 1), "FS303")
    assert before[reached]["form"] == "fallback"
    assert (after[reached]["form"], after[reached]["level"]) == ("idiom", "review")
    steps = [(step["file"], step["text"]) for step in after[reached]["provenance"]]
    assert ("main.py", 'observed in a run: model = find(CONFIG["wrap"])(build(CONFIG["model"]))') in steps
    assert after[unreached]["form"] == "fallback"

    # What was wrapped in this run stays plain in others: the function has a branch for it.
    assert after[ENGINE, line_of("no_sync"), "FS301"]["form"] == "fallback"

    # That rank 0 alone gets there is nowhere to be read.
    guard = (ENGINE, line_of("is_one()"), "FS414")
    assert guard not in before and after[guard]["level"] == "review"
    assert sum(f["form"] == "idiom" for f in after.values()) > sum(f["form"] == "idiom" for f in before.values())


def test_the_program_trains_the_same(program: Path) -> None:
    for arguments in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *arguments], cwd=program, check=True)
    applied = to_fsdp2(program, "apply", "--trace", "../trace.json")
    assert applied.returncode == 1, applied.stderr  # there is something to review
    result = to_fsdp2(program, "verify", "--", "main.py")
    assert result.returncode == 0, result.stdout


def test_what_has_changed_since_is_said_and_not_used(program: Path) -> None:
    engine = program / ENGINE
    engine.write_text("# a line more\n" + engine.read_text())
    result = to_fsdp2(program, "scan", "--trace", "../trace.json")
    assert result.returncode == 0
    assert "tasks/engine.py has changed since ../trace.json was written: what was seen there is not used" in result.stderr
    after = found(program, "--trace", "../trace.json")
    assert after[ENGINE, line_of("clip_grad_norm_") + 1, "FS303"]["form"] == "fallback"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON"),
        ('{"kind": "migration"}', "was not written by `to-fsdp2 trace` of this version"),
        ('{"kind": "trace", "schema": 3, "files": {}, "calls": 3}', "is damaged"),
        (None, "No such file"),
    ],
)
def test_what_is_no_trace_is_wrong_usage(tmp_path: Path, content: str | None, message: str) -> None:
    (tmp_path / "train.py").write_text("print()\n")
    if content is not None:
        (tmp_path / "trace.json").write_text(content)
    result = to_fsdp2(tmp_path, "diff", "--trace", "trace.json")
    assert result.returncode == 64
    assert message in result.stderr


def test_a_program_without_a_wrap_teaches_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('nothing to see')\n")
    (tmp_path / "notes.json").write_text("[]")
    refused = to_fsdp2(tmp_path, "trace", "-o", "notes.json", "--", "train.py")
    assert refused.returncode == 64 and "is there, and is no trace" in refused.stderr
    result = to_fsdp2(tmp_path, "trace", "--launcher", "python", "--", "train.py")
    assert result.returncode == 2 and "no model was wrapped" in result.stderr
    assert not (tmp_path / "trace.json").exists()


DISGUISED = {
    "keeping.py": """
def kept(cls):
    class Kept(cls):
        def __reduce__(self):
            return super().__reduce__()

    Kept.__name__, Kept.__qualname__, Kept.__module__ = cls.__name__, cls.__name__, cls.__module__
    return Kept
""",
    "layers.py": """
import torch
from keeping import kept


@kept
class Layer(torch.nn.Linear):
    def reset(self):
        self.reset_parameters()
""",
    "train.py": """
import importlib

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
make = getattr(importlib.import_module("layers"), "Layer")
net = make(3, 3)
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
""",
}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="where a method stands is told from 3.11 on")
def test_a_class_that_a_decorator_made_is_found_where_its_text_is(tmp_path: Path) -> None:
    for name, text in DISGUISED.items():
        (tmp_path / name).write_text(text)
    result = to_fsdp2(tmp_path, "trace", "-o", "trace.json", "--", "train.py")
    assert result.returncode == 0, result.stderr
    document = json.loads((tmp_path / "trace.json").read_text())
    held = {value["expression"]: value["held"] for value in document["values"]}
    assert held["net"] == [{"instance": {"file": "keeping.py", "name": "kept.Kept"}}]
