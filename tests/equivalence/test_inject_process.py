"""How processes are found, left alone, recorded to their end and explained when they hang."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from inject_runs import INJECT, SCRIPTS, launch, read, select

pytestmark = pytest.mark.slow


def free_port() -> str:
    with socket.socket() as sock:
        sock.bind(("localhost", 0))
        return str(sock.getsockname()[1])


def test_an_ordinary_process_is_left_alone(tmp_path: Path) -> None:
    done = launch(["-c", "import sys, torch; print([m for m in sys.modules if 'fsdp2_recorder.' in m])"], None)
    assert done.returncode == 0, done.stderr
    names = [name.rpartition(".")[2] for name in json.loads(done.stdout.replace("'", '"'))]
    assert "recorder" not in names and "prepare" not in names


def test_a_process_that_does_not_train_writes_nothing(tmp_path: Path) -> None:
    code = "import torch; m = torch.nn.Linear(2, 2); torch.optim.SGD(m.parameters(), lr=1); m(torch.ones(1, 2))"
    done = launch(["-c", code], tmp_path / "record")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "record").exists()


@pytest.mark.parametrize("on_path", [False, True])
def test_modules_of_the_user_keep_their_names(tmp_path: Path, on_path: bool) -> None:
    folder = SCRIPTS / "inject_clash"
    path = os.pathsep.join([str(INJECT), str(folder)] if on_path else [str(INJECT)])
    done = launch([str(folder / "train.py")], tmp_path / "record", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["sitecustomize"] == "has run"
    assert str(INJECT) not in seen["path"]
    (events,) = read(tmp_path / "record", 1)
    assert len(select(events, "step")) == 1
    (modules, last) = select(events, "modules")
    assert last["files"]["recorder"] == str(folder / "recorder.py")
    assert last["main"] == modules["main"] == str(folder / "train.py")
    assert not [file for file in last["files"].values() if str(INJECT) in file]


def test_ranks_that_the_script_spawns_are_recorded(tmp_path: Path) -> None:
    script = str(SCRIPTS / "inject_spawn.py")
    done = launch([script, free_port()], tmp_path / "record", TO_FSDP2_EMULATE_CUDA="2")
    assert done.returncode == 0, done.stderr
    ranks = read(tmp_path / "record", 2)
    for rank, events in enumerate(ranks):
        (start,) = select(events, "start")
        assert (start["rank"], start["world"], start["backend"], start["emulated"]) == (rank, 2, "nccl", True)
        assert [event["step"] for event in select(events, "step")] == [0, 1]
        assert select(events, "end")[0]["error"] is None
    assert select(ranks[0], "loss")[0]["value"] != select(ranks[1], "loss")[0]["value"]
    assert not list((tmp_path / "record").glob("rank0-*"))


def test_torch_distributed_launch_and_local_rank(tmp_path: Path) -> None:
    command = ["-m", "torch.distributed.launch", "--nproc-per-node", "2", "--master-port", free_port()]
    done = launch([*command, str(SCRIPTS / "inject_local_rank.py")], tmp_path / "record", TO_FSDP2_EMULATE_CUDA="2")
    assert done.returncode == 0, done.stderr
    for rank, events in enumerate(read(tmp_path / "record", 2)):
        assert select(events, "start")[0]["local_rank"] == rank
        assert len(select(events, "step")) == 1


def test_a_hung_run_says_where_each_rank_is(tmp_path: Path) -> None:
    script, record = SCRIPTS / "inject_hang.py", tmp_path / "record"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    variables = {"PYTHONPATH": str(INJECT), "TO_FSDP2_RECORD": str(record), "OMP_NUM_THREADS": "1"}
    for mode in ("exact", "noise"):
        record = tmp_path / mode
        environment = {**os.environ, **variables, "TO_FSDP2_RECORD": str(record), "TO_FSDP2_MODE": mode}
        process = subprocess.Popen([sys.executable, *launcher], env=environment, stderr=subprocess.DEVNULL)
        try:
            waiting = wait_for_step(record, ranks=2)
            lines = script.read_text().splitlines()
            reduce_line = next(i for i, line in enumerate(lines, 1) if "rank 0 waits in" in line)
            assert (waiting[0]["op"], waiting[0]["done"], waiting[0]["step"]) == ("all_reduce", False, 1)
            assert waiting[0]["where"] == f"inject_hang.py:{reduce_line}"
            assert waiting[0]["bytes"] == 12
            assert not waiting[1] or waiting[1]["done"]
            for events in read(record, 2):
                os.kill(select(events, "start")[0]["pid"], signal.SIGUSR2)
            stack = wait_for_text(record / "rank1.stack")
            sleep_line = next(i for i, line in enumerate(lines, 1) if "rank 1 is at" in line)
            assert f'inject_hang.py", line {sleep_line}' in stack
        finally:
            process.terminate()
            process.wait(30)


def wait_for_step(record: Path, ranks: int) -> list[dict]:
    """The content of the waiting files once every rank has made a step and rank 0 has entered its collective."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        files = [record / f"rank{rank}.waiting" for rank in range(ranks)]
        logs = [record / f"rank{rank}.jsonl" for rank in range(ranks)]
        if all(file.exists() for file in (*files, *logs)):
            waiting = [json.loads(file.read_text().strip() or "{}") for file in files]
            if waiting[0] and all('"event": "step"' in log.read_text() for log in logs):
                return waiting
        time.sleep(0.1)
    raise AssertionError("no rank came as far as a step")


def wait_for_text(path: Path) -> str:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not path.read_text():
        time.sleep(0.05)
    return path.read_text()


@pytest.fixture(scope="module")
def events_of_one_process(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict], Path]:
    folder = tmp_path_factory.mktemp("events")
    script = str(SCRIPTS / "inject_events.py")
    variables = {"TO_FSDP2_RECORD_LEVEL": "every:2", "TO_FSDP2_TRACE": json.dumps([script])}
    done = launch([script, "saved.pt", "fail"], folder / "record", cwd=folder, **variables)
    assert done.returncode == 1 and "out of luck" in done.stderr
    assert [path.name for path in (folder / "record").glob("*.jsonl")] == ["rank0.jsonl"], "workers must not write"
    (events,) = read(folder / "record", 1)
    return events, folder


def test_several_optimizers_count_their_own_steps(events_of_one_process: tuple[list[dict], Path]) -> None:
    events, _ = events_of_one_process
    steps = [(e["step"], e["optimizer"], e["optimizer_step"]) for e in select(events, "step")]
    assert steps == [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1), (4, 0, 2), (5, 1, 2)]
    critic, generator, *_ = select(events, "optimizer")
    assert critic["class"] == "SGD" and critic["models"][0]["compiled"] and not critic["not_in_optimizer"]
    assert generator["groups"] == [{"names": ["0.weight", "0.bias", "2.weight", "2.bias"]}]
    groups = select(events, "hyperparameters", optimizer=0)[0]["groups"]
    assert groups[0]["lr"] == pytest.approx(0.1) and groups[0]["momentum"] == 0.9
    assert select(events, "hyperparameters", optimizer=1)[0]["groups"][0]["betas"] == [0.5, 0.9]


def test_tensors_are_recorded_at_the_steps_of_the_level(events_of_one_process: tuple[list[dict], Path]) -> None:
    events, _ = events_of_one_process
    recorded = {(e["optimizer"], e["step"]) for e in select(events, "tensors")}
    assert recorded == {(0, 0), (1, 1), (0, 4), (1, 5)}
    kinds = {e["kind"] for e in select(events, "tensors", optimizer=0, step=0)}
    assert kinds == {"initial", "gradient", "clipped", "parameter", "optimizer", "buffer"}
    (clipped,) = select(events, "tensors", kind="clipped", step=0)
    assert max(entry["absmax"] for entry in clipped["entries"]) == pytest.approx(0.01)
    assert [e["recorded"] for e in select(events, "step")] == [True, True, False, False, True, True]


def test_a_step_that_the_scaler_leaves_out_counts(events_of_one_process: tuple[list[dict], Path]) -> None:
    events, _ = events_of_one_process
    assert [e["skipped"] for e in select(events, "step")] == [False, False, False, True, False, False]
    scaler = select(events, "scaler")
    scaler = [(e["step"], e.get("skipped"), e.get("scale")) for e in scaler if e["action"] != "unscale"]
    expected = [(1, None, 4.0), (1, False, None), (1, None, 8.0), (3, None, 8.0), (3, True, None), (3, None, 4.0)]
    assert scaler[:6] == expected
    assert [e["found_inf"] for e in select(events, "scaler", action="unscale")] == [False, True, False]
    losses = [(e["step"], e["scaled"]) for e in select(events, "loss")]
    assert losses == [(0, False), (1, True), (2, False), (3, True), (4, False), (5, True)]
    assert select(events, "loss", step=3)[0]["value"] in (float("inf"), float("-inf"))


def test_value_clipping(events_of_one_process: tuple[list[dict], Path]) -> None:
    events, _ = events_of_one_process
    (clip,) = select(events, "clip", step=0)
    assert (clip["kind"], clip["norm"], clip["max_norm"], clip["covered"], clip["total"]) == ("value", None, 0.01, 4, 4)


def test_checkpoints_and_the_end(events_of_one_process: tuple[list[dict], Path]) -> None:
    events, folder = events_of_one_process
    saved, loaded = select(events, "checkpoint")
    assert (saved["action"], saved["path"]) == ("save", str(folder / "saved.pt"))
    assert saved["keys"] == loaded["keys"] == ["generator", "optimizer"]
    (end,) = select(events, "end")
    assert end["error"] == "RuntimeError: out of luck"
    assert (end["steps"], end["backwards"]) == (6, 6)
    assert (end["optimizers_created"], end["optimizers_stepped"]) == (3, 2)


def test_executed_lines(events_of_one_process: tuple[list[dict], Path]) -> None:
    events, _ = events_of_one_process
    script = SCRIPTS / "inject_events.py"
    executed = set(select(events, "lines")[-1]["files"][str(script)])
    lines = {text.strip(): number for number, text in enumerate(script.read_text().splitlines(), 1)}
    assert lines['raise RuntimeError("out of luck")'] in executed
    assert lines["def unused(x):"] in executed
    assert lines["return x + 1"] not in executed


def test_a_wrong_setting_is_named(tmp_path: Path) -> None:
    done = launch(["-c", "import torch"], tmp_path, TO_FSDP2_RECORD_LEVEL="sometimes")
    assert "TO_FSDP2_RECORD_LEVEL: 'sometimes' is none of" in done.stderr
