"""Whether two runs say anything about the change: never a vacuous pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from hand_made import Events, of, training, written
from to_fsdp2.equivalence.changes import find_changes
from to_fsdp2.equivalence.coverage import Coverage, check_coverage
from to_fsdp2.equivalence.sides import Place
from to_fsdp2.equivalence.verdict import Side

OLD = '''"""A script."""
import torch


def wrap(model):
    # how it is wrapped
    return DDP(
        model,
        device_ids=None,
    )


def unused():
    return 1
'''
NEW = OLD.replace("DDP(", "shard(").replace("return 1", "return 2").replace("A script.", "The script.")


class Pair:
    """Two sides on disk and their records."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.original = directory / "original"
        self.events: dict[str, Events] = {"old": training("ddp"), "new": training()}
        self.places = {"old": self._place("old"), "new": self._place("new")}
        self.write("old", "train.py", OLD)
        self.write("new", "train.py", NEW)
        self.ran("old", "train.py", [2, 5, 7, 8, 13])
        self.ran("new", "train.py", [2, 5, 7, 8, 13])

    def _place(self, side: Side) -> Place:
        root = self.directory / side
        root.mkdir()
        return Place(side, side, root, root, self.original)

    def write(self, side: str, name: str, text: str) -> None:
        path = self.places[side].top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def ran(self, side: str, name: str, lines: list[int]) -> None:
        files = {str(self.places[side].top / name): lines}
        for rank in self.events[side]:
            others = [event for event in self.events[side][rank] if event["event"] != "lines"]
            self.events[side][rank] = [*others, {"event": "lines", "files": files}]

    def coverage(self) -> Coverage:
        old, new = self.places["old"], self.places["new"]
        records = [written(self.events[side], self.directory / f"record {side}") for side in ("old", "new")]
        return check_coverage((old, new), (records[0], records[1]), find_changes(old, new))


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_executed_changes_pass_and_those_that_were_not_are_listed(pair: Pair):
    coverage = pair.coverage()
    assert coverage.blocking is None
    assert coverage.result.outcome == "pass"
    assert "2 of 4 changed statements were executed" in coverage.result.reason
    assert [(entry.file, entry.lines) for entry in coverage.not_executed] == [("train.py", [14])]


def test_a_change_that_neither_side_executed_is_not_judged(pair: Pair):
    for side in ("old", "new"):
        pair.ran(side, "train.py", [2, 5, 13])
    coverage = pair.coverage()
    assert coverage.blocking is not None
    assert "neither side executed anything of what changed (train.py)" in coverage.blocking
    assert [entry.lines for entry in coverage.not_executed] == [[7, 8, 9, 10, 14]]


def test_a_removed_line_counts_if_the_old_side_executed_it(pair: Pair):
    pair.write("new", "train.py", OLD.replace("import torch\n", ""))
    pair.ran("new", "train.py", [4])
    assert pair.coverage().blocking is None


def test_comments_and_docstrings_are_no_change_of_code(pair: Pair):
    text = OLD.replace("A script.", "Another docstring.").replace("# how it is", "# why it is")
    pair.write("new", "train.py", text)
    assert find_changes(pair.places["old"], pair.places["new"]).files == []


def test_other_files_that_changed_are_named(pair: Pair):
    pair.write("old", "config.yaml", "fsdp: 1")
    pair.write("new", "config.yaml", "fsdp: 2")
    assert "also changed: config.yaml" in pair.coverage().result.reason


def test_a_file_of_one_side_only_is_a_change(pair: Pair):
    pair.write("new", "helper.py", "def load():\n    return 1\n")
    changes = find_changes(pair.places["old"], pair.places["new"])
    assert [file.name for file in changes.files] == ["helper.py", "train.py"]
    assert [statement.lines for statement in changes.files[0].new] == [(1,), (2,)]


@pytest.mark.parametrize("side", ["old", "new"])
def test_a_side_that_imports_the_original_is_not_judged(pair: Pair, side: str):
    for event in of(pair.events[side], "modules"):
        event["files"] = {"package.train": str(pair.original / "package" / "train.py")}
    coverage = pair.coverage()
    assert coverage.blocking is not None
    assert f"the {side} side imported package.train from {pair.original}" in coverage.blocking


def test_a_side_that_imports_the_other_side_is_not_judged(pair: Pair):
    for event in of(pair.events["old"], "modules"):
        event["files"] = {"package": str(pair.places["new"].top / "package.py")}
    assert "the old side imported package" in str(pair.coverage().blocking)


def test_code_from_somewhere_else_entirely_is_nobodys_business(pair: Pair):
    for side in ("old", "new"):
        for event in of(pair.events[side], "modules"):
            event["files"] = {"library": "/opt/library/__init__.py"}
    assert pair.coverage().blocking is None


def test_an_installed_copy_of_a_changed_package_is_not_judged(pair: Pair):
    pair.write("old", "src/package/model.py", "x = 1\n")
    pair.write("new", "src/package/model.py", "x = 2\n")
    for event in of(pair.events["new"], "modules"):
        event["installed"] = {"package": "/site-packages/package/__init__.py", "torch": "/site-packages/torch.py"}
    assert "an installed copy, not its own code" in str(pair.coverage().blocking)


def test_a_run_without_a_step_is_not_judged(pair: Pair):
    pair.events["new"] = training(steps=0)
    assert (pair.coverage().blocking or "").startswith("the new side never stepped an optimizer of torch (")


def test_a_run_that_recorded_nothing_is_not_judged(pair: Pair):
    pair.events["old"] = {}
    assert "nothing was recorded" in str(pair.coverage().blocking)


def test_dead_parameters_are_a_difference(pair: Pair):
    for event in of(pair.events["new"], "optimizer"):
        event["found"] = 0
    result = pair.coverage().result
    assert result.outcome == "fail"
    assert "3 of 3 parameters of AdamW" in result.reason
    assert "before fully_shard" in result.causes[0]


def test_a_parameter_that_left_the_optimizer(pair: Pair):
    for event in of(pair.events["new"], "optimizer"):
        event["groups"][0]["names"] = ["layer.weight", "head.weight"]
    result = pair.coverage().result
    assert (result.outcome, result.tensor) == ("fail", "layer.bias")
    assert "1 of 3 parameters left the optimizer" in result.reason


def test_another_number_of_ranks(pair: Pair):
    pair.events["new"] = training(world=4)
    pair.ran("new", "train.py", [7])
    assert pair.coverage().result.reason == "the new side ran on 4 ranks, the old one on 2"


def test_two_files_given_by_name_are_compared_with_each_other(tmp_path: Path):
    places = []
    for side in ("old", "new"):
        root = tmp_path / side
        root.mkdir()
        (root / "before.py").write_text(OLD)
        (root / "after.py").write_text(NEW)
        places.append(Place(side, side, root, root, tmp_path, "before.py" if side == "old" else "after.py"))
    changes = find_changes(places[0], places[1])
    assert [path.name for side in ("old", "new") for path in changes.paths(side)] == ["before.py", "after.py"]


def test_functions_and_branches_that_no_run_entered_are_named(pair: Pair):
    new = NEW + "\n\ndef save(model):\n    if model:\n        keep(model)\n    else:\n        lose(model)\n"
    pair.write("new", "train.py", new)
    pair.ran("new", "train.py", [2, 5, 7, 8, 13, 17, 18, 19])
    note = pair.coverage().unproved
    assert note is not None
    assert note.endswith("what they did not enter: in train.py the function unused and the branch at line 21")
