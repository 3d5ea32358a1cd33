# pyright: reportOptionalMemberAccess=false, reportArgumentType=false
"""What two runs saved, compared: real files of DDP, FSDP1 and FSDP2 trained alike on two ranks."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from to_fsdp2.equivalence import checkpoints  # noqa: E402
from to_fsdp2.equivalence.checkpoint_store import restore  # noqa: E402
from to_fsdp2.equivalence.record import read_record  # noqa: E402

SCRIPT = Path(__file__).parent / "scripts" / "save_checkpoints.py"
INJECT = Path(__file__).parents[2] / "equivalence" / "inject"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The directory of files that one real, recorded two-rank run wrote; its record is `record` in it."""
    out = tmp_path_factory.mktemp("saved")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, str(SCRIPT), str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(INJECT)}
    environment["TO_FSDP2_RECORD"] = str(out / "record")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[-4000:]
    return out


def write_record(directory, root, events):
    """A record directory as docs/record-format.md describes it; `events` are (rank, event)."""
    directory.mkdir(parents=True)
    for rank in {rank for rank, _ in events} | {0}:
        start = {"event": "start", "rank": rank, "root": str(root), "cwd": str(root), "time": 0.0}
        lines = [start, *(event for r, event in events if r == rank)]
        (directory / f"rank{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


def save_event(path, step=3, **more):
    return {
        "event": "checkpoint",
        "action": "save",
        "kind": "torch",
        "path": str(path),
        "step": step,
        "call": 0,
        **more,
    }


@pytest.fixture
def compare(saved, tmp_path):
    """Compares files of the two sides by name; a list is one file of each rank."""
    order = json.loads((saved / "order.json").read_text())
    optimizer = {"event": "optimizer", "optimizer": 0, "step": 0,
                 "groups": [{"names": names} for names in order],
                 "aliases": {"embedding.weight": ["head.weight"]}}  # fmt: skip
    buffers = {
        "event": "tensors",
        "kind": "buffer",
        "optimizer": 0,
        "step": 0,
        "entries": [{"name": f"blocks.{i}.scale", "missing": True} for i in range(2)],
    }

    def keep(side, names):
        root = tmp_path / side
        root.mkdir()
        paths = []
        for rank, name in enumerate([names] if isinstance(names, str) else names):
            path = root / ("checkpoint" + ("" if isinstance(names, str) else str(rank)) + Path(name).suffix)
            (shutil.copytree if (saved / name).is_dir() else shutil.copy)(saved / name, path)
            paths.append(path)
        events = [
            (0, optimizer),
            (0, buffers),
            *((rank, save_event(path)) for rank, path in enumerate(paths)),
        ]
        record = write_record(tmp_path / side / "record", root, events)
        checkpoints.preserve(read_record(record), tmp_path / side / "kept")
        return tmp_path / side / "kept"

    def compare(old, new, tolerance=0.0):
        return checkpoints.compare(keep("old", old), keep("new", new), tolerance)

    return compare


def reasons(results, outcome):
    return [result.reason for result in results if result.outcome == outcome]


def ranks(name):
    return [f"{name}_rank0.pt", f"{name}_rank1.pt"]


pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fsdp1_full.pt", "fsdp2_full.pt"),
        ("fsdp1_dcp", "fsdp2_dcp"),
        (ranks("fsdp1_sharded"), ranks("fsdp2_sharded")),
        ("fsdp2_full.pt", "fsdp2_flattened.pt"),
        ("ddp_clean.pt", "ddp_legacy.pt"),
    ],
)
def test_the_same_state_in_the_same_form_passes(compare, old, new):
    results = compare(old, new)
    assert [result.outcome for result in results] == ["pass"]
    assert "12 tensors and the optimizer state of 9 parameters agree bit for bit" in results[0].reason


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ddp.pt", "fsdp2_dcp"),
        ("fsdp1_full.pt", "fsdp2_dcp"),
        (ranks("fsdp1_sharded"), "fsdp2_dcp"),
        ("fsdp1_flat_full.pt", "fsdp1_flat_dcp"),
    ],
)
def test_a_change_to_dcp_is_expected_and_the_contents_are_compared(compare, old, new):
    results = compare(old, new)
    assert {result.outcome for result in results} == {"expected", "pass"}
    assert any("DCP instead of torch.save" in reason for reason in reasons(results, "expected"))


def test_numbered_optimizer_state_is_matched_by_name(compare):
    results = compare("ddp_clean.pt", "fsdp2_full.pt")
    assert {result.outcome for result in results} == {"expected", "pass"}
    assert "keyed by parameter names" in reasons(results, "expected")[0]


def test_a_module_prefix_that_is_kept_passes(compare):
    assert not reasons(compare("ddp.pt", "fsdp2_prefixed.pt"), "fail")


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        ("fsdp2_local.pt", "embedding.weight holds one rank's shard, rows 0 to 5 of 11"),
        (
            "fsdp2_rank0_dtensors.pt",
            "is a DTensor of shape [11, 6], and the file holds 36 of its 66 elements",
        ),
        (ranks("fsdp2_sharded"), "is a DTensor of shape [11, 6] instead of a plain tensor"),
        ("fsdp2_without_buffers.pt", "blocks.0.scale is missing (and 1 more)"),
        (
            "fsdp2_without_optimizer.pt",
            "the optimizer ('optimizer', state of 9 parameters) is not saved any more",
        ),
        ("fsdp2_empty_optimizer.pt", "the optimizer is saved without state"),
        ("fsdp2_cast.pt", "is bfloat16 instead of float32, its values are the old ones, rounded"),
        ("fsdp2_untied.pt", "head.weight is missing; a name it is tied to is saved"),
        ("fsdp2_prefixed.pt", "became 'module."),
    ],
)
def test_each_mistake_in_saving_is_told_apart(compare, new, reason):
    failed = reasons(compare("fsdp1_full.pt", new), "fail")
    assert any(reason in text for text in failed), failed


def test_mistakes_do_not_hide_behind_one_another(compare):
    """Old keys have a prefix; the new file lost it and holds shards: two findings, the graver one first."""
    failed = reasons(compare("ddp.pt", "fsdp2_local.pt"), "fail")
    assert "one rank's shard" in failed[0]
    assert any("'module." in text for text in failed)


def test_flat_parameters_are_not_blamed_on_the_new_side(compare):
    results = compare(ranks("fsdp1_local"), "fsdp2_full.pt")
    assert any("LOCAL_STATE_DICT" in reason for reason in reasons(results, "not compared"))


@pytest.fixture
def runs(tmp_path):
    """Lets a test write the files of both sides itself; returns the comparison."""

    def compare(events, tolerance=0.0):
        kept = []
        for side in ("old", "new"):
            root = tmp_path / side
            root.mkdir(exist_ok=True)
            record = write_record(tmp_path / f"{side}-record", root, events(root, side))
            checkpoints.preserve(read_record(record), tmp_path / f"{side}-kept")
            kept.append(tmp_path / f"{side}-kept")
        return checkpoints.compare(kept[0], kept[1], tolerance)

    return compare


def test_a_shared_absolute_path_is_not_compared_with_itself(runs, tmp_path):
    shared = tmp_path / "shared.pt"

    def events(root, side):
        torch.save({"w": torch.full((4,), 1.0 if side == "old" else 2.0)}, shared)
        return [(0, save_event(shared))]

    results = runs(events)
    assert results[0].outcome == "fail"
    assert results[0].difference == pytest.approx(0.5)
    assert results[0].tensor == "w"


def test_renamed_files_are_followed(runs):
    def events(root, side):
        found = []
        for step in (2, 4):
            torch.save({"w": torch.full((4,), float(step))}, root / "last.pt")
            found.append((0, save_event(root / "last.pt.tmp", step=step)))
            found.append(
                (
                    0,
                    {
                        "event": "checkpoint",
                        "action": "rename",
                        "path": f"{root}/last.pt.tmp",
                        "to": f"{root}/last.pt",
                        "step": step,
                    },
                )
            )
        return found

    results = runs(events)
    assert [result.outcome for result in results] == ["pass"]
    assert "last.pt" in results[0].reason


def test_unfinished_names_are_found_without_a_rename_event(runs):
    def events(root, side):
        torch.save({"w": torch.ones(2)}, root / "last.pt")
        return [(0, save_event(root / "last.pt.tmp"))]

    assert [result.outcome for result in runs(events)] == ["pass"]


def test_a_checkpoint_that_only_one_side_saves(runs):
    def events(root, side):
        torch.save({"w": torch.ones(2)}, root / "a.pt")
        torch.save({"w": torch.ones(2)}, root / "b.pt")
        return [(0, save_event(root / name)) for name in (["a.pt", "b.pt"] if side == "old" else ["a.pt"])]

    assert any("did not save b.pt" in reason for reason in reasons(runs(events), "fail"))


def test_another_name_is_a_finding_and_another_number_is_not(runs):
    def events(root, side):
        found = []
        for name in ["best.pt", "run-1217.pt"] if side == "old" else ["top.pt", "run-1218.pt"]:
            torch.save({"w": torch.ones(2)}, root / name)
            found.append((0, save_event(root / name)))
        return found

    failed = reasons(runs(events), "fail")
    assert failed == ["top.pt: saved under another name than best.pt: programs that look for it do not find it"]


def test_no_checkpoint_is_not_a_pass(runs):
    results = runs(lambda root, side: [(0, save_event("x") | {"path": None})])
    assert [result.outcome for result in results] == ["not compared"]
    assert "memory" in results[0].reason


def test_other_values_and_hyperparameters(runs):
    def events(root, side):
        new = side == "new"
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.2 if new else 0.1, momentum=0.9)
        content = {
            "model": {"w": weight},
            "opt": optimizer.state_dict(),
            "epoch": 4 if new else 3,
            "elapsed_seconds": 2.0 if new else 1.0,
        }
        torch.save(content, root / "last.pt")
        optimizer_event = {"event": "optimizer", "optimizer": 0, "step": 0, "groups": [{"names": ["w"]}]}
        return [(0, optimizer_event), (0, save_event(root / "last.pt"))]

    results = runs(events)
    failed = reasons(results, "fail")
    assert any("lr of w is 0.2 instead of 0.1" in text for text in failed)
    assert any("entry 'epoch' is 4 instead of 3" in text for text in failed)
    assert any("elapsed_seconds" in text for text in reasons(results, "expected"))


def test_another_model_under_the_name_of_the_average_is_told(tmp_path):
    trained, average = ({"a.weight": torch.ones(2) * factor, "a.bias": torch.zeros(1) + factor} for factor in (1.0, 0.5))
    torch.save({"model": trained, "ema": average}, tmp_path / "old.pt")
    torch.save({"model": trained, "ema": trained}, tmp_path / "new.pt")
    (result,) = checkpoints.compare_paths(tmp_path / "old.pt", tmp_path / "new.pt")
    assert result.outcome == "fail"
    assert "section 'ema' holds what the old file has in 'model'" in result.reason


def test_tolerance_bounds_the_relative_difference(runs, tmp_path):
    def events(root, side):
        torch.save({"w": torch.ones(4) * (1 + 1e-5 * (side == "new"))}, root / "last.pt")
        return [(0, save_event(root / "last.pt"))]

    assert runs(events, tolerance=1e-4)[0].outcome == "pass"
    old, new = tmp_path / "old-kept", tmp_path / "new-kept"
    assert checkpoints.compare(old, new, tolerance=1e-6)[0].outcome == "fail"


def test_nan_in_the_same_places_is_equal_and_elsewhere_is_not(runs):
    def events(root, side):
        values = torch.tensor([1.0, float("nan"), float("inf")])
        torch.save({"same": values, "other": values.flip(0) if side == "new" else values}, root / "last.pt")
        return [(0, save_event(root / "last.pt"))]

    results = runs(events)
    assert [(result.outcome, result.tensor) for result in results] == [("fail", "other")]


def test_joined_takes_the_worst_and_keeps_all_reasons(compare):
    results = compare("ddp.pt", "fsdp2_local.pt")
    one = checkpoints.joined(results)
    assert one.name == "checkpoints" and one.outcome == "fail"
    assert "one rank's shard" in one.reason and "keyed by parameter names" in one.reason
    assert one.tensor == "embedding.weight"


SAFETENSORS = """
import sys
import torch
import torch.distributed as dist
from safetensors.torch import save_file
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}.store", rank=0, world_size=1)
model = torch.load(sys.argv[2])["model"]
save_file({key: value.clone() for key, value in model.items()}, sys.argv[1])
dist.destroy_process_group()
"""


@pytest.mark.parametrize("lost", [False, True])
def test_what_no_rounding_makes_has_no_size_and_comes_first(runs, lost):
    """A difference without a size is never excused by one of the gradients; numbers that differ by rounding have one."""

    def events(root, side):
        off = 0.0 if side == "old" else 1e-7
        state = {} if lost and side == "new" else {"exp_avg": torch.ones(4)}
        file = {
            "model": {"w": torch.full((4,), 1.0 + off)}, "best": 0.25 + off, "losses": [1.0, 0.5 + off],
            "optimizer": {"state": {"w": state}, "param_groups": [{"params": ["w"], "lr": 0.1}]},
        }  # fmt: skip
        torch.save(file, root / "last.pt")
        return [(0, save_event(root / "last.pt"))]

    result = checkpoints.joined(runs(events))
    assert result.outcome == "fail"
    if lost:
        assert result.difference is None and result.reason.startswith("last.pt: the new state of w lacks exp_avg")
    else:
        assert result.difference is not None and 0 < result.difference < 1e-6


def test_safetensors_are_recorded_and_hold_the_same_model(saved, tmp_path):
    pytest.importorskip("safetensors")
    path, record = tmp_path / "model.safetensors", tmp_path / "record"
    command = [sys.executable, "-c", SAFETENSORS, str(path), str(saved / "fsdp2_full.pt")]
    environment = {**os.environ, "PYTHONPATH": str(INJECT), "TO_FSDP2_RECORD": str(record)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    run = checkpoints.preserve(read_record(record), tmp_path / "kept")
    assert [Path(file.name).name for file in run.files] == ["model.safetensors"]
    results = checkpoints.compare_paths(saved / "fsdp2_full.pt", Path(run.files[0].copy))
    failed = [result.reason.split(": ", 1)[1] for result in results if result.outcome == "fail"]
    assert any("saved as safetensors instead of torch.save" in reason for reason in failed)
    assert any("section 'model' is now '(top)'" in reason for reason in failed)
    assert not any("differs" in reason or "shape" in reason for reason in failed)


def test_paths_can_be_compared_directly(saved):
    results = checkpoints.compare_paths(saved / "fsdp1_full.pt", saved / "fsdp2_dcp")
    assert {result.outcome for result in results} == {"expected", "pass"}


def test_a_real_record_leads_to_every_file_and_names_every_parameter(saved, tmp_path):
    run = checkpoints.preserve(read_record(saved / "record"), tmp_path / "kept")
    written = {path.name for path in saved.iterdir()} - {"record", "order.json"}
    assert {Path(file.name).name for file in run.files} == written
    assert all(file.copy is not None for file in run.files)
    order = json.loads((saved / "order.json").read_text())
    assert run.orders[0] == order
    assert ["embedding.weight", "head.weight"] in [sorted(group) for group in run.aliases]
    results = checkpoints.compare(tmp_path / "kept", tmp_path / "kept")
    # One of the files is a shard, which cannot be compared even with itself.
    assert {result.outcome for result in results} == {"pass", "not compared"}
    assert [
        r.reason for r in results if r.outcome == "not compared" and "fsdp2_rank0_dtensors.pt" not in r.reason
    ] == []
    passed = sum(result.outcome == "pass" for result in results)
    assert passed == len(written) - sum(name.endswith("_rank1.pt") for name in written) - 1


def test_restore_puts_files_and_their_companions_to_the_same_places(tmp_path):
    root = tmp_path / "old"
    (root / "out").mkdir(parents=True)
    torch.save({"w": torch.ones(1)}, root / "out" / "step4.pt")
    (root / "out" / "latest").write_text("step4.pt")
    record = write_record(tmp_path / "record", root, [(0, save_event(root / "out" / "step4.pt", step=4))])
    run = checkpoints.preserve(read_record(record), tmp_path / "kept")
    other = tmp_path / "new"
    path = restore(run, other)
    assert path == other / "out" / "step4.pt" and path.is_file()
    assert (other / "out" / "latest").read_text() == "step4.pt"


def test_restored_checkpoints_are_of_the_age_that_scripts_look_for(tmp_path):
    root = tmp_path / "old"
    events = []
    for step in (20, 3, 100, 11):  # names tell nothing of the order
        path = root / f"step_{step}"
        path.mkdir(parents=True)
        torch.save({"w": torch.ones(1)}, path / "model.pt")
        torch.save({"step": step}, path / "meta.pt")
        for part in range(3):
            (path / f"part{part}.json").write_text("{}")
        events += [(0, save_event(path / name, step=step)) for name in ("model.pt", "meta.pt")]
        time.sleep(0.02)
    # Of the oldest checkpoint one file is written last of all, as a script does that keeps the best one there.
    torch.save({"step": 0}, root / "step_20" / "best.pt")
    events.append((0, save_event(root / "step_20" / "best.pt", step=100)))
    run = checkpoints.preserve(read_record(write_record(tmp_path / "record", root, events)), tmp_path / "kept")
    restore(run, tmp_path / "new")
    for age in (os.path.getctime, os.path.getmtime):
        by_age = sorted((tmp_path / "new").iterdir(), key=age)
        assert [path.name for path in by_age] == ["step_3", "step_100", "step_11", "step_20"]
        assert len({age(path) for path in by_age}) == 4


def test_keys_of_a_compiled_model_are_not_blamed_on_data_parallel(tmp_path):
    state = {"layer.weight": torch.ones(2, 2)}
    torch.save({f"_orig_mod.{name}": tensor for name, tensor in state.items()}, tmp_path / "old.pt")
    torch.save(state, tmp_path / "new.pt")
    (result,) = [r for r in checkpoints.compare_paths(tmp_path / "old.pt", tmp_path / "new.pt") if r.outcome == "fail"]
    assert "'_orig_mod.layer.weight' became 'layer.weight'" in result.reason
    assert "torch.compile" in result.causes[0]
    assert not any("DistributedDataParallel" in cause for cause in result.causes)


def test_ranks_that_overwrite_each_other_are_told(tmp_path):
    for side in ("old", "new"):
        (tmp_path / side).mkdir()
        torch.save({"model": {"w": torch.ones(2)}}, tmp_path / side / "a.pt")
        events = [(rank, save_event(tmp_path / side / "a.pt")) for rank in ((0, 1) if side == "new" else (0,))]
        record = write_record(tmp_path / f"{side}-record", tmp_path / side, events)
        checkpoints.preserve(read_record(record), tmp_path / f"{side}-kept")
    found = [r for r in checkpoints.compare(tmp_path / "old-kept", tmp_path / "new-kept") if r.outcome == "fail"]
    assert "ranks 0, 1 save to this one file" in found[0].reason


def test_what_helpers_note_on_a_pickled_copy_is_no_difference(tmp_path):
    for side, marks in (("old", {}), ("new", {"_wrapped_like": "ddp"}), ("other", {"scale": 2.0})):
        model = torch.nn.Linear(1, 1)
        torch.nn.init.ones_(model.weight)
        torch.nn.init.ones_(model.bias)
        vars(model).update(marks)
        torch.save(model, tmp_path / f"{side}.pt")
    assert not [r for r in checkpoints.compare_paths(tmp_path / "old.pt", tmp_path / "new.pt") if r.outcome == "fail"]
    (other,) = [r for r in checkpoints.compare_paths(tmp_path / "old.pt", tmp_path / "other.pt") if r.outcome == "fail"]
    assert "entry 'scale' is new" in other.reason
