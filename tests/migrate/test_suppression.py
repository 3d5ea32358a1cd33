"""A comment in the code speaks for a finding: what is then written, and what `check` says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from to_fsdp2.migrate.__main__ import run

TWO_MODELS = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def wrap_teacher(net):
    teacher = DDP(net){comment}
    teacher.module.eval()
    return teacher


def wrap_student(net):
    student = DDP(net)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    return student, optimizer
"""

HAZARD = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, batches):
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.register_comm_hook(None, my_own_hook){comment}
    for batch in batches:
        model(batch).sum().backward()
        optimizer.step()
"""


@pytest.fixture
def findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[str], list[dict]]:
    """Findings of a program, in the order of its lines."""
    monkeypatch.chdir(tmp_path)

    def look(text: str) -> list[dict]:
        (tmp_path / "train.py").write_text(text)
        assert run(["scan", "--format", "json"]) == 0
        return json.loads(capfd.readouterr().out)["findings"]

    return look


def written(capfd: pytest.CaptureFixture[str]) -> str:
    assert run(["diff"]) in (0, 1)
    return capfd.readouterr().out


def test_a_comment_leaves_a_group_alone_and_no_other(
    findings: Callable[[str], list[dict]], capfd: pytest.CaptureFixture[str]
) -> None:
    assert not any(finding["suppressed"] for finding in findings(TWO_MODELS.format(comment="")))
    assert "teacher = DDP(net)" in written(capfd)
    marked = findings(TWO_MODELS.format(comment="  # to-fsdp2: ignore[FS120] frozen"))
    assert [finding["line"] for finding in marked if finding["suppressed"]] == [6, 7]
    patch = written(capfd)
    assert "-    teacher" not in patch
    assert "-    student = DDP(net)" in patch


def test_the_comment_of_another_rule_changes_nothing(findings: Callable[[str], list[dict]]) -> None:
    assert not any(
        finding["suppressed"] for finding in findings(TWO_MODELS.format(comment="  # to-fsdp2: ignore[FS301]"))
    )


def test_a_hazard_that_somebody_answers_for_holds_nothing_back(
    findings: Callable[[str], list[dict]], capfd: pytest.CaptureFixture[str]
) -> None:
    before = findings(HAZARD.format(comment=""))
    [hazard] = [finding for finding in before if finding["line"] == 9]
    assert hazard["level"] == "manual"
    assert any(finding["blocked_by"] == "train.py:9" for finding in before)
    assert written(capfd) == ""
    after = findings(HAZARD.format(comment=f"  # to-fsdp2: ignore[{hazard['rule']}] replaced below"))
    assert [finding["line"] for finding in after if finding["suppressed"]] == [9]
    assert "+    fully_shard(" in written(capfd)
