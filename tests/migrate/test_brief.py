"""The page of what is left: every open stop with its code, evidence, recipe and judge, before and after `apply`."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
from repositories import commit_all, git
from to_fsdp2.migrate.recipe import recipe
from to_fsdp2.transforms.findings import Level
from to_fsdp2.transforms.rule import all_rules

Real = Callable[..., tuple[int, str, str]]

TRAIN = """\
import torch
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel as DDP
from wrap import wrap


def main():
    net = torch.nn.Linear(8, 8)
    model = wrap(net)
    for step in range(3):
        model(torch.ones(4, 8)).sum().backward()
    model.register_comm_hook(PowerSGDState(None), powerSGD_hook)


if __name__ == "__main__":
    main()
"""
WRAP = "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\ndef wrap(net):\n    return DDP(net)\n"
STOP = "model.register_comm_hook(PowerSGDState(None), powerSGD_hook)"
REWRITTEN = "register_comm_hook(model, PowerSGDState(None), powerSGD_hook)"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "wrap.py").write_text(WRAP)
    commit_all(tmp_path)
    return tmp_path


def test_a_stop_with_all_that_it_takes(real: Real, repository: Path) -> None:
    code, page, _ = real("brief")
    assert code == 1
    assert "1 open stop," in page
    assert "has not been run yet: it changes 3 files" in page
    assert "### train.py:12, in `main`" in page
    assert f"> 12 |     {STOP}" in page
    assert f"|     {REWRITTEN}" in page
    assert "- `wrap.py:5` return DDP(net)" in page
    assert "# to-fsdp2: ignore[FS304] reason" in page
    assert "MixedPrecisionPolicy(reduce_dtype=torch.float16)" in page
    assert "to-fsdp2 verify -- train.py ARGUMENTS" in page
    assert git(repository, "status", "--porcelain").stdout == b""


def test_after_apply_the_stops_are_still_known(real: Real, repository: Path) -> None:
    before = real("brief")[1]
    assert real("apply")[0] == 1
    moved = ["# a line\n", *(repository / "train.py").read_text().splitlines(keepends=True)]
    (repository / "train.py").write_text("".join(moved))
    line = next(number for number, text in enumerate(moved, start=1) if REWRITTEN in text)
    code, page, _ = real("brief")
    assert code == 1
    assert "The migration has been applied." in page
    assert f"### train.py:{line}, in `main`" in page
    assert f"> {line} |     {REWRITTEN}" in page
    assert f"> 12 |     {STOP}" in page
    assert page.partition("Why a wrapped")[2] == before.partition("Why a wrapped")[2]
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "migrated")
    assert "0 open stops" in real("brief")[1]
    assert f"### train.py:{line}" in real("brief", "--old", "HEAD~1")[1]
    assert real("brief", "--old", "nowhere")[0] == 64
    assert real("brief", "--old", "--all")[0] == 64


def test_outside_of_git_the_files_count_as_they_are(real: Real, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN.replace("from wrap import wrap", "wrap = DDP"))
    code, page, _ = real("brief", "-o", "BRIEF.md")
    assert (code, page) == (1, "")
    assert "### train.py:12" in (tmp_path / "BRIEF.md").read_text()


def test_nothing_is_left(real: Real, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = 1\n")
    code, page, _ = real("brief")
    assert code == 0
    assert "0 open stops, 0 places to read" in page


def test_files_that_were_not_read_are_listed(real: Real, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from torch.nn.parallel import DistributedDataParallel\nDDP(\n")
    code, page, _ = real("brief")
    assert code == 2
    assert "- `train.py:2`" in page


def test_recipes_are_code_of_rules_that_exist() -> None:
    known = {rule.id: rule for rule in all_rules()}
    for page in (files("to_fsdp2.migrate") / "recipes").iterdir():
        text = recipe(known[page.name.removesuffix(".md")])
        blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        assert blocks
        for block in blocks:
            ast.parse(block)


def test_every_rule_that_stops_has_a_recipe() -> None:
    source = Path(__file__).parents[2] / "transforms" / "rules"
    for file in source.glob("fs*.py"):
        rule = next(rule for rule in all_rules() if rule.id.lower() == file.name[:5])
        stops = "Level.MANUAL" in file.read_text() or any(example.level is Level.MANUAL for example in rule.examples)
        assert not stops or recipe(rule), rule.id
