"""A comment in the code speaks for a finding: what is then written, and what `check` says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

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
    (tmp_path / "train.py").write_text(line.format("  # to-fsdp2: ignore", "  # to-fsdp2: ignore[FS120] frozen"))
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


def test_a_family_in_the_brackets_speaks_for_its_rules(real: Real, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TWO_MODELS.format(comment="  # to-fsdp2: ignore[FS1] frozen"))
    _, patch, err = real("diff")
    assert "-    teacher" not in patch and "1 suppressed" in err


SAVES = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(torch.nn.Linear(2, 2))
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}{comment}
torch.save(checkpoint, "last.pt")
"""


def test_one_rewrite_left_out_leaves_its_whole_program_alone(real: Real, tmp_path: Path) -> None:
    comment = "  # to-fsdp2: ignore[FS402] as it was"
    (tmp_path / "train.py").write_text(SAVES.replace("{comment}", ""))
    (tmp_path / "other.py").write_text(SAVES.replace("{comment}", ""))
    patch = real("diff")[1]
    assert "+++ b/train.py" in patch and "+++ b/other.py" in patch
    (tmp_path / "train.py").write_text(SAVES.replace("{comment}", comment))
    code, patch, _ = real("diff")
    assert code == 1
    assert "train.py" not in patch and "+++ b/other.py" in patch
    assert "train.py: left alone: the comment at train.py:8 leaves FS402 out" in real("scan")[1]
    real("apply")
    assert (tmp_path / "train.py").read_text() == SAVES.replace("{comment}", comment)


def test_a_note_is_left_out_by_itself(real: Real, tmp_path: Path) -> None:
    text = SAVES.replace("{comment}", "") + "print(model.reducer)  # to-fsdp2: ignore[FS606] a number for the log\n"
    (tmp_path / "train.py").write_text(text)
    note = [line for line in real("scan", "--all")[1].splitlines() if "FS606" in line]
    assert len(note) == 1 and note[0].endswith("(suppressed)")


WRONG = [
    ("# to-fsdp2: ignore[FS12O] a letter", "no rule is called 'FS12O', so nothing is left out; did you mean FS122 or FS120"),
    ("# to-fsdp2: ignore[fs120]", "did you mean FS120"),
    ("# to-fsdp2: ignore[]", "the brackets name no rule"),
    ("# to-fsdp2: ignore FS120", "a rule is named outside of brackets"),
    ("# to-fsdp2: ignore[FS120", "this comment is not read"),
    ("# to-fsdp2: ignore(FS120)", "this comment is not read"),
    ("# to-fsdp2: ignroe[FS120]", "this comment is not read"),
    ("# to-fsdp2 ignore[FS120]", "this comment is not read"),
    ("# to_fsdp2: ignore[FS120]", "this comment is not read"),
    ("# tofsdp2: ignore[FS120]", "this comment is not read"),
    ("# to-fsdp2: disable=FS120", "this comment is not read"),
    ("# to-fsdp2: ignore[FS120, FS301] frozen", "nothing here is found by FS301"),
]


@pytest.mark.parametrize(("comment", "message"), WRONG)
def test_a_comment_that_is_not_read_as_it_was_meant_is_named(real: Real, tmp_path: Path, comment: str, message: str) -> None:
    line = "from torch.nn.parallel import DistributedDataParallel as DDP\nmodel = DDP(net)  {}\n"
    (tmp_path / "train.py").write_text(line.format(comment))
    for command in ("scan", "check"):
        code, out, _ = real(command)
        assert code == (1 if command == "check" else 0)
        [said] = [line for line in out.splitlines() if "FS992" in line]
        assert said.startswith("  train.py:2:19 review FS992 ") and message in said
    is_read = "FS120, FS301" in comment
    assert (real("diff")[1] == "") is is_read


def test_comments_without_use_are_named_also_where_nothing_else_is(real: Real, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("x = 1  # to-fsdp2: ignore[FS120] was a model once\n")
    code, out, _ = real("check")
    assert code == 1 and "plain.py:1:8 review FS992 no rule that is meant says anything here" in out


def test_what_stands_in_strings_and_in_prose_is_no_comment_for_the_tool(real: Real, tmp_path: Path) -> None:
    (tmp_path / "docs.py").write_text(
        '"""Write `# to-fsdp2: ignore[FS999]` to leave one out."""\n# moved to FSDP2: ignored layers stay\n'
        "from torch.distributed.fsdp import fully_shard\n"
    )
    assert real("check")[0] == 0


def test_a_comment_above_may_be_long(real: Real, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "# to-fsdp2: ignore[FS120] frozen,\n# and never trained\nmodel = DDP(net)\n"
    )
    assert real("check")[0] == 0


def test_comments_for_the_contract_are_not_called_useless_where_it_is_not_asked(real: Real, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from torch.distributed.fsdp import fully_shard\n\n\ndef f(model, x):\n    fully_shard(model)\n"
        "    return model.forward(x)  # to-fsdp2: ignore[FS904] traced\n"
    )
    assert "FS992" not in real("scan", "--all")[1]
    assert real("check")[0] == 0
