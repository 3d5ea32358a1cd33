"""How scripts are started, and what is said of runs that did not end well; no training process is needed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from to_fsdp2.equivalence import devices, launch
from to_fsdp2.equivalence.command import check_options
from to_fsdp2.equivalence.failures import failure_of, first_exception
from to_fsdp2.equivalence.launch import Finished, Launch, environment_of, launcher_command, needs_of, script_of
from to_fsdp2.equivalence.options import UsageError, VerifyOptions
from to_fsdp2.equivalence.record import Record, read_record
from to_fsdp2.equivalence.script_needs import Needs, read_needs
from to_fsdp2.equivalence.sides import Place
from to_fsdp2.equivalence.waiting import describe_waiting

PLAIN = Needs(spawns=False, local_rank_flag=None, cuda=False)


def place(root: Path, script: str | None = None) -> Place:
    return Place("old", "old", root, root, root, script)


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "train.py"


@pytest.mark.parametrize(
    "source",
    [
        "import torch.multiprocessing as mp\nmp.spawn(main)",
        "import torch\ntorch.multiprocessing.spawn(main)",
        "from torch.multiprocessing import spawn as go\ngo(main)",
        "from torch import multiprocessing\nmultiprocessing.start_processes(main)",
    ],
)
def test_scripts_that_start_their_own_ranks(tmp_path: Path, source: str):
    assert read_needs(write(tmp_path, train=source), tmp_path).spawns


@pytest.mark.parametrize(
    "source",
    [
        "generators = rng.spawn(2)",
        "import multiprocessing as mp\nmp.set_start_method('spawn')",
        "def spawn(): ...\nspawn()",
    ],
)
def test_other_things_called_spawn(tmp_path: Path, source: str):
    assert not read_needs(write(tmp_path, train=source), tmp_path).spawns


def test_needs_are_found_in_imported_modules_of_the_repository(tmp_path: Path):
    script = write(
        tmp_path,
        train="from package.arguments import parse\nfrom package import missing\n",
        package____init__="",
        package__arguments="from . import flags\n",
        package__flags="parser.add_argument('--local-rank')\nbackend = 'nccl'\n",
        unrelated="parser.add_argument('--local_rank')\n",
    )
    assert read_needs(script, tmp_path) == Needs(spawns=False, local_rank_flag="--local-rank", cuda=True)


@pytest.mark.parametrize("line", ["torch.accelerator.init()", "from torch import accelerator", "x = current_accelerator()"])
def test_asking_for_whatever_accelerator_there_is_wants_one(tmp_path: Path, line: str):
    assert read_needs(write(tmp_path, train=f"import torch\n{line}\n"), tmp_path).cuda


def test_a_script_with_a_syntax_error_is_its_own_problem(tmp_path: Path):
    assert read_needs(write(tmp_path, train="def (:\n"), tmp_path) == PLAIN


def test_torchrun_is_the_launcher(tmp_path: Path):
    options = VerifyOptions(command=["train.py", "--steps", "2"], nproc=4)
    command = launcher_command(options, place(tmp_path), PLAIN, tmp_path / "logs", ["--more"])
    assert command[:4] == [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4"]
    assert "--standalone" in command
    assert command[-4:] == ["train.py", "--steps", "2", "--more"]


def test_several_machines_are_handed_to_torchrun(tmp_path: Path):
    options = VerifyOptions(command=["-m", "a.b"], nnodes="2", node_rank=1, rdzv_endpoint="host:1")
    command = launcher_command(options, place(tmp_path), PLAIN, tmp_path, [])
    assert {"--nnodes=2", "--node-rank=1", "--rdzv-endpoint=host:1"} < set(command)
    assert command[-2:] == ["-m", "a.b"]


def test_a_spawning_script_is_started_once(tmp_path: Path):
    needs = Needs(spawns=True, local_rank_flag=None, cuda=False)
    options = VerifyOptions(command=["train.py", "x"])
    assert launcher_command(options, place(tmp_path), needs, tmp_path, []) == [sys.executable, "-u", "train.py", "x"]
    forced = VerifyOptions(command=["train.py"], launcher="torchrun")
    assert "torch.distributed.run" in launcher_command(forced, place(tmp_path), needs, tmp_path, [])


def test_each_rank_gets_its_local_rank(tmp_path: Path):
    needs = Needs(spawns=False, local_rank_flag="--local_rank", cuda=False)
    command = launcher_command(VerifyOptions(command=["train.py", "x y"]), place(tmp_path), needs, tmp_path, [])
    assert command[command.index("--no-python") + 1 :] == [
        "/bin/sh", "-c", launch.PASS_LOCAL_RANK, sys.executable, "train.py", "--local_rank", "x y"
    ]  # fmt: skip


def test_with_a_file_only_arguments_follow(tmp_path: Path):
    assert script_of(["--steps", "2"], place(tmp_path, "old.py")) == (["old.py"], ["--steps", "2"])
    assert script_of(["-m", "a", "b"], place(tmp_path)) == (["-m", "a"], ["b"])


@pytest.mark.parametrize("command", [[], ["-m"], ["missing.py"], ["-m", "missing"]])
def test_a_command_that_cannot_run(tmp_path: Path, command: list[str]):
    with pytest.raises(UsageError):
        needs_of(command, place(tmp_path))


def test_the_environment_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setenv("MINE", "kept")
    monkeypatch.setenv("PYTHONPATH", "lib")
    started = Launch("old", [], place(tmp_path), tmp_path / "record", tmp_path / "logs", {"TO_FSDP2_MODE": "exact"})
    environment = environment_of(started, tmp_path / "tmp")
    assert not {"RANK", "MASTER_PORT"} & environment.keys()
    assert environment["MINE"] == "kept"
    assert environment["PYTHONPATH"].split(":")[:2] == [str(launch.INJECT), "lib"]
    assert environment["TO_FSDP2_RECORD"] == str(tmp_path / "record")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"record": "sometimes"}, "--record sometimes"),
        ({"record": "every:0"}, "--record every:0"),
        ({"nproc": 0}, "--nproc 0"),
        ({"timeout": 0}, "--timeout 0"),
        ({"nnodes": "2"}, "--nnodes needs --report"),
        ({"control": "'"}, "--control"),
    ],
)
def test_options_that_make_no_sense(change: dict, words: str):
    with pytest.raises(UsageError, match=words):
        check_options(VerifyOptions(**change))


def test_without_torch_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'to-fsdp2\[verify\]'"):
        check_options(VerifyOptions())


@pytest.mark.parametrize(
    ("gpus", "device", "wants_cuda", "nproc", "name", "mode"),
    [
        (0, "auto", True, 2, "emulated cuda", "exact"),
        (0, "auto", False, 2, "cpu", "exact"),
        (0, "cpu", True, 2, "cpu", "exact"),
        (0, "cuda", False, 2, "emulated cuda", "exact"),
        (0, "auto", False, 3, "cpu", "noise"),
        (1, "auto", True, 2, "shared cuda", "noise"),
        (2, "auto", True, 2, "cuda", "noise"),
        (2, "auto", False, 2, "cpu", "exact"),
        (2, "cpu", True, 2, "cpu", "exact"),
    ],
)
def test_devices_and_modes(monkeypatch, gpus: int, device, wants_cuda: bool, nproc: int, name: str, mode: str):
    monkeypatch.setattr(devices, "count_gpus", lambda: gpus)
    chosen = devices.choose_device(VerifyOptions(device=device, nproc=nproc), wants_cuda)
    assert (chosen.name, chosen.mode, chosen.environment["TO_FSDP2_MODE"]) == (name, mode, mode)
    assert ("TO_FSDP2_EMULATE_CUDA" in chosen.environment) == (name == "emulated cuda")
    assert any("emulated" in note for note in chosen.notes) == (name == "emulated cuda")


SUMMARY = """
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: 1)
"""


class Failed:
    """A run that torchrun reported as failed, with the error output of its ranks."""

    def __init__(self, directory: Path, rank: int, code: int, **errors: str) -> None:
        self.launch = Launch("new", [], place(directory), directory / "record", directory / "logs")
        (directory / "logs").mkdir()
        (directory / "logs" / "launcher.log").write_text(SUMMARY.format(rank=rank, code=code))
        for name, text in errors.items():
            path = directory / "logs" / "run" / "attempt_0" / name[-1] / "stderr.log"
            path.parent.mkdir(parents=True)
            path.write_text(text)

    def sentence(self, record: Record | None = None) -> str | None:
        return failure_of(Finished(1, 1.0), self.launch, record or Record(), 10)


def test_the_exception_of_the_rank_that_failed(tmp_path: Path):
    failed = Failed(tmp_path, 1, 1, rank0="", rank1="Traceback:\n[rank1]: my.OwnError: no batch\nnoise\n")
    assert failed.sentence() == "rank 1 ended with exit code 1: my.OwnError: no batch, before training began"


TRACEBACK = """[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 3, in <module>
[rank0]:     import numpy
[rank0]: ImportError: numpy was built for another version of Python,
[rank0]: and cannot be imported. See
[rank0]: https://numpy.org/devdocs

[rank0]: During handling of the above exception, another exception occurred:

[rank0]: Traceback (most recent call last):
[rank0]: RuntimeError: no data
"""


def test_the_exception_of_a_spawned_rank_is_told():
    text = """Traceback (most recent call last):
  File "torch/multiprocessing/spawn.py", line 215, in join
    raise ProcessRaisedException(msg, error_index, failed_process.pid)
torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "main.py", line 223, in main_worker
    best = best.to(gpu)
AttributeError: 'float' object has no attribute 'to'
"""
    assert first_exception(text) == "AttributeError: 'float' object has no attribute 'to'"


def test_the_first_exception_is_told_with_all_its_lines(tmp_path: Path):
    sentence = str(Failed(tmp_path, 0, 1, rank0=TRACEBACK).sentence())
    assert "ImportError: numpy was built for another version of Python, and cannot be imported. See https://numpy" in sentence
    assert "no data" not in sentence


def test_the_line_of_the_users_code_is_named(tmp_path: Path):
    stack = f"""Traceback (most recent call last):
  File "{tmp_path}/train.py", line 9, in <module>
    main()
  File "{tmp_path}/tools/load.py", line 7, in main
    parameter.copy_(saved)
  File "/usr/lib/python/torch/utils/_contextlib.py", line 124, in decorate_context
    return func(*args, **kwargs)
RuntimeError: two kinds of tensors

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "{tmp_path}/train.py", line 11, in <module>
    raise
ValueError: no
"""
    failed = Failed(tmp_path, 1, 1, rank0="", rank1="".join(f"[rank1]: {line}\n" for line in stack.splitlines()))
    assert "RuntimeError: two kinds of tensors (at tools/load.py:7), before" in str(failed.sentence())


def test_a_mismatch_of_collectives_is_a_consequence(tmp_path: Path):
    gloo = "RuntimeError: [enforce fail at gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 8 vs 4"
    failed = Failed(tmp_path, 0, 1, rank0=f"{gloo}\n", rank1="ValueError: save() on rank 1 only\n")
    assert "rank 1 ended with exit code 1: ValueError: save() on rank 1 only" in str(failed.sentence())


def test_a_lost_connection_is_a_consequence(tmp_path: Path):
    failed = Failed(tmp_path, 0, 1, rank0="RuntimeError: Connection closed by peer\n", rank1="ValueError: the cause\n")
    assert "rank 1 ended with exit code 1: ValueError: the cause" in str(failed.sentence())


def test_a_signal(tmp_path: Path):
    assert "rank 1 was killed by SIGSEGV" in str(Failed(tmp_path, 1, -11, rank1="").sentence())


def test_a_run_that_ended_well_has_no_failure(tmp_path: Path):
    started = Launch("old", [], place(tmp_path), tmp_path, tmp_path)
    assert failure_of(Finished(0, 1.0), started, Record(), 10) is None


def test_what_ranks_waited_in(tmp_path: Path):
    waiting = {"number": 7, "op": "all_reduce", "dtype": "float32", "bytes": 64, "step": 2, "where": "train.py:4"}
    (tmp_path / "rank0.waiting").write_text(json.dumps({**waiting, "done": False}) + "   ")
    (tmp_path / "rank1.waiting").write_text(json.dumps({**waiting, "done": True}))
    (tmp_path / "rank1.stack").write_text(f'File "/lib/x.py", line 1\nFile "{tmp_path}/a/train.py", line 9\n')
    text = describe_waiting(tmp_path, tmp_path)
    assert "rank 0 waited in all_reduce (its collective no. 7, step 2, 64 bytes of float32) at train.py:4" in text
    assert "rank 1 was busy at a/train.py:9; its last collective, all_reduce" in text


def test_ranks_that_never_came_that_far(tmp_path: Path):
    assert "no rank had come as far" in describe_waiting(tmp_path, tmp_path)
    assert read_record(tmp_path).world == 0
