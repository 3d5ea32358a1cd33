"""`verify --bisect` finds the changes that make a verdict fail, among others that are right, need each other, or never ran."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from to_fsdp2.equivalence.command import check_options
from to_fsdp2.equivalence.delta import Answer, isolate
from to_fsdp2.equivalence.names import missing_names
from to_fsdp2.equivalence.options import UsageError, VerifyOptions
from to_fsdp2.equivalence.partial import ChangedText, compose, parts_of
from to_fsdp2.migrate.__main__ import run

OLD = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
model = DDP(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(
    model.parameters(), lr=0.1
)
for step in range(2):
    loss = model(torch.ones(2, 4) * (dist.get_rank() + 1)).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
if dist.get_world_size() > 2:
    print("many")
dist.destroy_process_group()
"""
CHANGES = {
    "from torch.nn.parallel import DistributedDataParallel as DDP": "from torch.nn.parallel import DistributedDataParallel",
    "DDP(torch.nn.Linear(4, 4))": "DistributedDataParallel(torch.nn.Linear(4, 4))",
    "lr=0.1": "lr=0.2",
    "for step in range(2)": "for step in range(1 + 1)",
    '"many"': '"more"',
}


def changed(*names: str) -> str:
    text = OLD
    for before in names:
        text = text.replace(before, CHANGES[before])
    return text


@pytest.mark.slow
def test_one_wrong_change_among_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side, text in (("old", OLD), ("new", changed(*CHANGES))):
        (tmp_path / side).mkdir()
        (tmp_path / side / "train.py").write_text(text)
    old, new, report = str(tmp_path / "old"), str(tmp_path / "new"), tmp_path / "report"
    options = ["--old", old, "--new", new, "--launcher", "python", "--device", "cpu", "--report", str(report), "--bisect"]
    assert run(["verify", *options, "--", "train.py"]) == 1
    shown = capsys.readouterr()
    document = json.loads((report / "report.json").read_text())
    jsonschema.validate(document, json.loads(files("to_fsdp2.equivalence").joinpath("schemas/verdict.json").read_text()))
    found = document["bisection"]
    [change] = found["changes"]
    assert (change["file"], change["line"], change["old_line"]) == ("train.py", 9, 9)
    assert change["patch"] == ["-    model.parameters(), lr=0.1", "+    model.parameters(), lr=0.2"]
    assert found["executed"] == 4
    assert found["trials"] <= 4
    assert shown.out.count("bisected: 1 change makes the verdict what it is, of 4 ") == 1
    assert "at train.py:9\n" in shown.out
    assert shown.err.count("old run: started") == 1
    assert "model.parameters(), lr=0.2" in (report / "report.html").read_text()


SAVING = """\
import argparse
import os
import time

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--resume")
parser.add_argument("--steps", type=int, default=2)
args = parser.parse_args()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
start = 0
if args.resume:
    state = torch.load(args.resume)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start = state["step"]
for step in range(start, args.steps):
    loss = model(torch.ones(2, 4) * (step + 1)).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, "last.pt")
print("done")
dist.destroy_process_group()
"""
HARMLESS = {
    "torch.manual_seed(0)": "torch.manual_seed(1 - 1)",
    "range(start, args.steps)": "range(start, 0 + args.steps)",
    "lr=0.1": "lr=0.2 / 2",
}
LOADS = '    optimizer.load_state_dict(state["optimizer"])'
RESUME = ["--resume", "--resume-arguments", "--resume {checkpoint} --steps 4"]
FAILING = {
    "crash": ('print("done")', 'raise RuntimeError(f"no {os.getcwd()}/x at {id(model)}")', [], 2),
    "hang": ('print("done")', "time.sleep(600)", ["--timeout", "20"], 2),
    "resume": (LOADS, "    pass", RESUME, 1),
    "resume_crash": (LOADS, '    optimizer.load_state_dict(state["optim"])', RESUME, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAILING)
def test_a_new_side_that_fails_otherwise(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It crashes, with a message of its place; it hangs; it does not resume, which no line of the first runs shows."""
    before, after, options, code = FAILING[kind]
    new = SAVING
    for harmless in HARMLESS:
        new = new.replace(harmless, HARMLESS[harmless])
    for side, text in (("old", SAVING), ("new", new.replace(before, after))):
        (tmp_path / side).mkdir()
        (tmp_path / side / "train.py").write_text(text)
    places = ["--old", str(tmp_path / "old"), "--new", str(tmp_path / "new")]
    assert run(["verify", *places, "--launcher", "python", "--device", "cpu", "--bisect", *options, "--", "train.py"]) == code
    shown = capsys.readouterr()
    assert "bisected: 1 change makes the verdict what it is, of 4 " in shown.out, shown.out
    assert f"      -{before}\n      +{after}\n" in shown.out


ACCUMULATING = """\
import argparse

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--accumulation", type=int, default=3)
args = parser.parse_args()
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for step in range(2):
    for micro in range(args.accumulation):
        model(torch.randn(3, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_with_a_difference_that_control_runs_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The wrap's own difference vanishes in the control runs, also in those of trials; what is left is the wrong number."""
    new = ACCUMULATING.replace("DDP(torch.nn.Linear(4, 4))", "fully_shard(torch.nn.Linear(4, 4))")
    new = new.replace("torch.randn(3, 4)", "torch.randn(3, 4) * (1.0 if step < 1 else 2.0)").replace("range(2)", "range(1 + 1)")
    for side, text in (("old", ACCUMULATING), ("new", new)):
        (tmp_path / side).mkdir()
        (tmp_path / side / "train.py").write_text(text)
    options = ["--old", str(tmp_path / "old"), "--new", str(tmp_path / "new"), "--device", "cpu", "--bisect"]
    assert run(["verify", *options, "--control", "--accumulation 1", "--", "train.py"]) == 1
    shown = capsys.readouterr()
    assert "bisected: 1 change makes the verdict what it is" in shown.out, shown.out
    assert "+        model(torch.randn(3, 4) * (1.0 if step < 1 else 2.0))" in shown.out
    assert shown.err.count("control-old run: started") == 1, shown.err


def test_without_a_failure_there_is_nothing_to_bisect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side in ("old", "new"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "train.py").write_text(OLD)
    options = ["--old", str(tmp_path / "old"), "--new", str(tmp_path / "new"), "--bisect"]
    assert run(["verify", *options, "--", "train.py"]) == 2
    assert "bisected: nothing to bisect: the verdict is not judged" in capsys.readouterr().out


def test_an_old_side_that_fails_is_none_of_the_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fails = OLD.replace("    optimizer.zero_grad()\n", "    optimizer.zero_grad()\n    assert step < 1, 'broken before'\n")
    for side, text in (("old", fails), ("new", changed("lr=0.1"))):
        (tmp_path / side).mkdir()
        (tmp_path / side / "train.py").write_text(text)
    options = ["--old", str(tmp_path / "old"), "--new", str(tmp_path / "new"), "--nproc", "1", "--bisect"]
    assert run(["verify", *options, "--", "train.py"]) == 2
    shown = capsys.readouterr()
    assert "not judged: the old run failed" in shown.out and "broken before (at train.py:16)" in shown.out, shown.out
    assert "bisected: nothing to bisect: the old side fails, with none of the changes in it" in shown.out
    assert "new run: started" not in shown.err


@pytest.mark.parametrize("option", ["in_place", "save_reference", "nnodes"])
def test_what_cannot_be_bisected(option: str, tmp_path: Path) -> None:
    given = {"in_place": True, "save_reference": tmp_path, "nnodes": "2"}[option]
    with pytest.raises(UsageError, match="--bisect makes copies"):
        check_options(VerifyOptions(command=["train.py"], bisect=True, report=tmp_path, **{option: given}))


def needing_each_other(wrong: int, *pairs: tuple[int, int]) -> Callable[[frozenset[int]], Answer]:
    def test(chosen: frozenset[int]) -> Answer:
        if any((first in chosen) != (second in chosen) for first, second in pairs):
            return "neither"
        return "fails" if wrong in chosen else "passes"

    return test


@pytest.mark.parametrize("wrong", range(9))
@pytest.mark.parametrize("pairs", [(), ((3, 4),), ((0, 1), (7, 8))])
def test_the_difference_that_is_left_is_the_wrong_change(wrong: int, pairs: tuple[tuple[int, int], ...]) -> None:
    passing, failing = isolate(9, needing_each_other(wrong, *pairs))
    assert failing - passing == set(next((pair for pair in pairs if wrong in pair), (wrong,)))


@pytest.mark.parametrize("wrong", range(9))
def test_where_changes_far_apart_need_each_other_more_may_be_left(wrong: int) -> None:
    pairs = (0, 8), (2, 5), (3, 4)
    passing, failing = isolate(9, needing_each_other(wrong, *pairs))
    assert {wrong, *next((pair for pair in pairs if wrong in pair), ())} <= failing - passing
    assert len(failing - passing) <= 4


def test_no_set_is_tested_twice() -> None:
    tested: list[frozenset[int]] = []

    def test(chosen: frozenset[int]) -> Answer:
        tested.append(chosen)
        return "neither"

    assert isolate(5, test) == (frozenset(), frozenset(range(5)))
    assert len(tested) == len(set(tested)) >= 10


def text_of(old: str, new: str) -> ChangedText:
    return ChangedText("a.py", Path("a.py"), old.encode(), new.encode())


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("a = 1\nb = 2\n", "a = 2\nb = 3\n", 2),
        ("f(\n    1,\n    g(2),\n    3,\n)\n", "f(\n    2,\n    g(2),\n    4,\n)\n", 1),
        ("if a:\n    b = 1\nc = 1\n", "if a:\n    if d:\n        b = 1\nc = 1\n", 1),
        ("with a:\n    b()\nc = 1\n", "b()\nc = 2\n", 2),
        ("first = 1\nsecond = 2\n", "first = 2\nsecond = 3\nthird = 4\n", 2),
        ("a = 1\n", "", 1),
        ("# é\r\na = 1\r\n", "# é\r\na = 2\r\n", 1),
    ],
)
def test_parts_of_a_file(old: str, new: str, parts: int) -> None:
    text = text_of(old, new)
    found = parts_of(text)
    assert len(found) == parts
    assert compose([text], []) == {"a.py": old.encode()}
    assert compose([text], found) == {"a.py": new.encode()}
    for part in found:
        compile(compose([text], [part])["a.py"] or b"", "a.py", "exec")


def test_names_that_lines_miss() -> None:
    helpers = "from helpers import help\nhelp(thing)\n"
    assert missing_names({"a.py": (helpers, frozenset({1, 2})), "helpers.py": ("def help(): ...\n", frozenset())}) == {"thing"}
    assert missing_names({"a.py": (helpers, frozenset({1})), "helpers.py": ("", frozenset())}) == {"help"}
    assert missing_names({"a.py": (helpers, frozenset({1})), "helpers.py": None}) == {"help"}
    assert missing_names({"a.py": (helpers, frozenset())}) == set()
