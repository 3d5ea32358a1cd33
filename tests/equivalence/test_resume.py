# pyright: reportAttributeAccessIssue=false
"""Continuing each script from the other's checkpoint: what is put where, and what follows from the runs."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from to_fsdp2.equivalence import checkpoints, resume  # noqa: E402
from to_fsdp2.equivalence.command import verify  # noqa: E402
from to_fsdp2.equivalence.options import VerifyOptions  # noqa: E402
from to_fsdp2.equivalence.record import Record  # noqa: E402
from to_fsdp2.equivalence.verdict import CheckResult, Run  # noqa: E402

SCRIPTS = Path(__file__).parent / "scripts"


class Sides:
    """Two sides that have trained once; further runs are played by `outcomes`, by name."""

    def __init__(self, directory, content=None):
        self.directory = directory
        self.started = []
        self.seen = {}
        self.outcomes = {}
        self.different = {}
        for side in ("old", "new"):
            root = directory / side
            root.mkdir()
            value = {"model": {"w": torch.full((2,), 1.0 if side == "old" else 2.0)}, **(content or {})}
            torch.save(value, root / f"{side}.pt")
            checkpoints.preserve(self.record(root, save=root / f"{side}.pt"), directory / f"{side}-kept")

    def record(self, root, save=None, load=None):
        record = Record()
        record.starts[0] = {"root": str(root), "cwd": str(root), "time": 0.0, "world": 1}
        events = [("save", save), ("load", load)]
        record.checkpoints[0] = [
            {"action": action, "path": str(path), "step": 3} for action, path in events if path is not None
        ]
        return record

    def start(self, side, arguments, name):
        self.started.append((side, arguments, name))
        root = self.directory / side
        self.seen[name] = sorted(path.name for path in root.iterdir())
        outcome = {"failure": None, "steps": 3, "load": "given", **self.outcomes.get(name, {})}
        run = Run(side, "", str(root), [], 2, 0, steps=outcome["steps"], failure=outcome["failure"])
        record = self.record(root, load=outcome["load"])
        record.warnings.append(name)
        return run, record

    def compare(self, old, new):
        pair = f"{old.warnings[0]} {new.warnings[0]}"
        failed = [CheckResult("loss", "fail", "0.2 instead of 0.1", 1, None, 0.5)] if pair in self.different else []
        return [CheckResult("memory", "fail", "more"), CheckResult("gradients", "pass", "equal"), *failed]

    def check(self, arguments="--resume {checkpoint} --steps 6", rounded=False):
        resumption = resume.Resumption(
            tops={side: self.directory / side for side in ("old", "new")},
            kept={side: self.directory / f"{side}-kept" for side in ("old", "new")},
            arguments=arguments,
        )
        return resume.check(resumption, self.start, self.compare, rounded)


@pytest.fixture
def sides(tmp_path):
    return Sides(tmp_path)


FORWARD, BACK = "old-from-old new-from-old", "old-from-old old-from-new"


def test_three_runs_show_it_in_both_directions(sides):
    result = sides.check()
    assert (result.name, result.outcome) == ("resume", "pass")
    assert [(side, name) for side, _, name in sides.started] == [
        ("old", "old-from-old"), ("new", "new-from-old"), ("old", "old-from-new"),
    ]  # fmt: skip


def test_the_checkpoint_is_at_the_receiving_side_and_its_own_are_gone(sides):
    sides.check()
    (_, arguments, _) = sides.started[1]
    assert arguments == ["--resume", str(sides.directory / "new" / "old.pt"), "--steps", "6"]
    assert sides.seen == {"old-from-old": ["old.pt"], "new-from-old": ["old.pt"], "old-from-new": ["new.pt"]}
    (_, arguments, _) = sides.started[2]
    given = torch.load(arguments[1])
    assert given["model"]["w"].tolist() == [2.0, 2.0]


def test_a_new_script_that_goes_on_otherwise_fails(sides):
    sides.different = {FORWARD}
    result = sides.check()
    assert result.outcome == "fail"
    assert "the new script differs in loss: 0.2 instead of 0.1" in result.reason
    assert (result.step, result.difference) == (1, 0.5)
    assert len(sides.started) == 2


def test_a_new_script_that_refuses_the_old_file_fails(sides):
    sides.outcomes["new-from-old"] = {"failure": "rank 0 ended with exit code 1: KeyError: 'state.0.step'"}
    result = sides.check()
    assert result.outcome == "fail"
    assert "does not continue from the old checkpoint" in result.reason and "state.0.step" in result.reason


def test_whole_tensors_that_meet_shards_are_the_cause(sides):
    text = "rank 0 ended with exit code 1: RuntimeError: aten.copy_.default got mixed torch.Tensor and DTensor (at load.py:4)"
    sides.outcomes["new-from-old"] = {"failure": text}
    (cause,) = sides.check().causes
    assert "meet sharded parameters" in cause


def test_an_old_script_that_refuses_the_new_file_is_expected(sides):
    sides.outcomes["old-from-new"] = {"failure": "KeyError"}
    result = sides.check()
    assert result.outcome == "expected"
    assert "does not take the new checkpoint" in result.reason


def test_an_old_script_that_takes_the_new_file_and_differs_fails(sides):
    sides.different = {BACK}
    result = sides.check()
    assert result.outcome == "fail"
    assert "rollback" in result.reason


def test_checkpoints_that_are_meant_to_differ_are_continued_by_both_sides(sides):
    sides.different = {BACK}
    result = sides.check(rounded=True)
    assert result.outcome == "expected" and "as the new one does" in result.reason
    assert [name for _, _, name in sides.started][-1] == "new-from-new"
    sides.different = {BACK, "old-from-new new-from-new"}
    assert sides.check(rounded=True).outcome == "fail"


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        ({"load": None}, "it loaded no checkpoint"),
        ({"steps": 0}, "it made no step"),
        ({"failure": "hung"}, "could not be continued: hung"),
    ],
)
def test_a_reference_that_shows_nothing_is_not_a_pass(sides, outcome, reason):
    sides.outcomes["old-from-old"] = outcome
    result = sides.check()
    assert result.outcome == "not compared"
    assert reason in result.reason


@pytest.mark.parametrize("outcome", [{"load": None}, {"steps": 0}])
def test_a_new_script_that_starts_afresh_fails(sides, outcome):
    sides.outcomes["new-from-old"] = outcome
    assert sides.check().outcome == "fail"


def test_without_arguments_the_script_finds_its_files_itself(sides):
    sides.check(arguments="")
    assert all(arguments == [] for _, arguments, _ in sides.started)


def test_no_checkpoint_to_continue_from(tmp_path):
    sides = Sides(tmp_path)
    checkpoints.preserve(sides.record(tmp_path / "old"), tmp_path / "empty")
    (tmp_path / "old-kept").rename(tmp_path / "unused")
    (tmp_path / "empty").rename(tmp_path / "old-kept")
    result = sides.check()
    assert result.outcome == "not compared" and sides.started == []


def test_a_step_shared_by_all_parameters_is_named_as_the_cause(tmp_path):
    shared = torch.tensor(3.0)
    state = {name: {"step": shared, "exp_avg": torch.zeros(2)} for name in ("a", "b")}
    sides = Sides(tmp_path, {"optimizer": {"state": state, "param_groups": [{"params": ["a", "b"], "lr": 0.1}]}})
    sides.different = {FORWARD}
    assert "clone the tensors of the optimizer state" in sides.check().causes[0]


def verified(new, report, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("resume_old.py", new):
        (tmp_path / name).write_text((SCRIPTS / name).read_text())
    options = VerifyOptions(
        command=["--steps", "3"], old="resume_old.py", new=new, resume=True, report=report, timeout=300,
        resume_arguments="--resume {checkpoint} --steps 6",
    )  # fmt: skip
    code = verify(options)
    document = json.loads((report / "report.json").read_text())
    return code, {check["name"]: check for check in document["checks"]}


@pytest.mark.slow
def test_ddp_and_its_migration_continue_each_other(tmp_path, monkeypatch):
    code, checks = verified("resume_new.py", tmp_path / "report", tmp_path, monkeypatch)
    assert checks["resume"]["outcome"] == "pass", checks["resume"]
    assert "(3 steps)" in checks["resume"]["reason"]
    assert checks["checkpoints"]["outcome"] == "expected", checks["checkpoints"]
    assert code == 0
