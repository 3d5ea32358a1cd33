"""A comment in the code speaks for a finding: what is then written, and what `check` says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

TWO_MODELS = """\
from torch.nn.parallel import DistributedDataParallel as DDP


def wrap_teacher(net):
    teacher = DDP(net){comment}
    teacher.module.eval()
    return teacher


def wrap_student(net):
    student = DDP(net)
    student.module.train()
    return student
"""

Real = Callable[..., tuple[int, str, str]]


def test_a_comment_leaves_a_wrapper_alone_and_what_is_in_it(real: Real, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TWO_MODELS.format(comment=""))
    assert "teacher.eval()" in real("diff")[1]
    (tmp_path / "train.py").write_text(TWO_MODELS.format(comment="  # to-fsdp2: ignore[FS120] frozen"))
    code, patch, err = real("diff")
    assert code == 1
    assert "1 suppressed" in err
    assert "-    teacher" not in patch
    assert "-    student = DDP(net)" in patch
    assert "-    student.module.train()" in patch


def test_a_comment_takes_a_finding_off_the_list_of_check(real: Real, tmp_path: Path) -> None:
    line = "from torch.nn.parallel import DistributedDataParallel as DDP{}\nmodel = DDP(net){}\n"
    (tmp_path / "train.py").write_text(line.format("", ""))
    assert real("check")[0] == 1
    (tmp_path / "train.py").write_text(line.format("  # to-fsdp2: ignore", "  # to-fsdp2: ignore[FS120, FS301] frozen"))
    assert real("check")[0] == 0


def test_the_comment_of_another_rule_changes_nothing(real: Real, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TWO_MODELS.format(comment="  # to-fsdp2: ignore[FS301]"))
    _, patch, err = real("diff")
    assert "-    teacher = DDP(net)" in patch
    assert "suppressed" not in err


def test_a_stop_in_the_code_is_a_finding_until_somebody_speaks_for_it(real: Real, tmp_path: Path) -> None:
    text = '''def read(model):
    raise NotImplementedError("to-fsdp2 FS413: gather what is read"){}
'''
    (tmp_path / "train.py").write_text(text.format(""))
    code, out, _ = real("check")
    assert code == 1
    assert "train.py:2:5 manual FS413 gather what is read" in out
    assert real("diff")[0] == 0
    (tmp_path / "train.py").write_text(text.format("  # to-fsdp2: ignore[FS413] never read"))
    assert real("check")[0] == 0


def test_a_program_of_ddp_alone_stays_when_ddp_is_kept(real: Real, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TWO_MODELS.format(comment="") + "\n\nif __name__ == '__main__':\n    wrap_student(None)\n")
    assert real("diff", "--ddp", "keep")[:2] == (0, "")
    assert real("diff")[0] == 1
