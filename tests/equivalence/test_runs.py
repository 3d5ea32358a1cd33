"""Real runs that end well, badly, or not at all: the sentence, the exit code, and that no process is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

COMMON = """
import os, sys, time
import torch, torch.nn as nn
import torch.distributed as dist
"""
START = """
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
"""
TRAIN = """
torch.manual_seed(0)
model = nn.Linear(4, 2)
{wrap}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({steps}):
    {before}
    loss = model(torch.ones(3, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
END = """
dist.destroy_process_group()
"""
DDP = "model = nn.parallel.DistributedDataParallel(model)"
FSDP2 = "from torch.distributed.fsdp import fully_shard; fully_shard(model)"


def script(wrap: str = FSDP2, steps: int = 2, before: str = "pass", start: str = START, end: str = END) -> str:
    return COMMON + start + TRAIN.format(wrap=wrap, steps=steps, before=before) + end


class Result:
    """What a verification printed and returned."""

    def __init__(self, finished: subprocess.CompletedProcess[str]) -> None:
        self.code = finished.returncode
        self.stderr = finished.stderr
        self.document = json.loads(finished.stdout) if finished.stdout.startswith("{") else {}

    @property
    def reason(self) -> str:
        return self.document["reason"]

    def check(self, name: str) -> dict:
        return next(check for check in self.document["checks"] if check["name"] == name)


VERIFY = [sys.executable, "-m", "to_fsdp2.migrate", "verify", "--new", "new.py", "--format", "json"]
COMMAND = [*VERIFY, "--old", "old.py"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A script that most tests compare with, and its run: made once."""
    top = tmp_path_factory.mktemp("reference")
    (top / "side").mkdir()
    (top / "side" / "old.py").write_text(script(DDP))
    saved = _run([*COMMAND, "--new", "old.py", "--save-reference", str(top / "saved")], top / "side", top, 240)
    assert saved.returncode == 0, saved.stdout + saved.stderr
    return top / "side" / "old.py", top / "saved"


@pytest.fixture
def verify(tmp_path: Path, reference: tuple[Path, Path]) -> Callable[..., Result]:
    def run(old: str, new: str, *options: str, timeout: float = 240, fresh: bool = False) -> Result:
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        (work / "old.py").write_text(textwrap.dedent(old))
        (work / "new.py").write_text(textwrap.dedent(new))
        command = COMMAND
        if old == script(DDP) and not fresh:
            command = [*VERIFY, "--old", str(reference[0]), "--reference", str(reference[1])]
        result = Result(_run([*command, *options], work, tmp_path, timeout))
        assert left_over(tmp_path) == []
        assert list((tmp_path / "tmp").iterdir()) == []
        return result

    return run


def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "tmp").mkdir(exist_ok=True)
    return {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "OMP_NUM_THREADS": "1", "MARKER": str(tmp_path)}


def _run(command: list[str], work: Path, tmp_path: Path, timeout: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=work, env=environment(tmp_path), capture_output=True, text=True, timeout=timeout, check=False
    )


def left_over(tmp_path: Path) -> list[int]:
    """Processes that carry this test's marker in their environment and are still alive."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"MARKER={tmp_path}".encode() in variables:
                found.append(int(entry.name))
    return found


def test_an_equivalent_pair_is_called_equivalent(verify):
    result = verify(script(DDP), script(), fresh=True)
    assert (result.code, result.document["verdict"]) == (0, "equivalent")
    assert result.document["runs"]["old"]["steps"] == 2
    assert "old run: 2 steps on 2 ranks" in result.stderr


def test_a_hung_rank_is_ended_and_the_collective_named(verify):
    hang = "if step == 1 and rank == 1: time.sleep(10_000)"
    result = verify(script(DDP), script(before=hang), "--timeout", "45")
    assert (result.code, result.document["verdict"]) == (2, "not judged")
    assert "the new run failed: ended after 45 seconds" in result.reason
    assert "rank 0 waited in all_gather" in result.reason
    assert "rank 1 was busy at new.py:" in result.reason


def test_a_rank_that_has_done_its_work_and_does_not_leave_is_ended(verify):
    """As gloo's threads make ranks do now and then: the interpreter ends, and never comes to an end.

    Nobody would wait for the time limit otherwise, and the run would be no proof.
    """
    late = "\nclass Late:\n    def __del__(self, sleep=__import__('time').sleep):\n        sleep(10_000)\n\n"
    result = verify(script(DDP), script(end=END + late + "import sys; sys.late = Late()\n"), timeout=120)
    assert (result.code, result.document["verdict"]) == (0, "equivalent")


def test_a_rank_that_raises(verify):
    crash = "if step == 1 and rank == 1: raise ValueError('no such batch')"
    result = verify(script(DDP), script(before=crash))
    assert result.code == 2
    assert "rank 1 ended with exit code 1: ValueError: no such batch (at new.py:14), after 1 steps" in result.reason


def test_all_lines_of_the_first_exception_of_the_rank_that_failed_first_are_shown(verify):
    crash = """
    if step == 1 and rank == 1:
        try:
            raise ValueError("the batch has 3 rows,\\nnot 4: see\\nhttps://example.org/batches")
        finally:
            {}["absent"]
    """
    result = verify(script(DDP), script(before=textwrap.indent(textwrap.dedent(crash), "    ").strip()))
    assert result.code == 2
    whole = "rank 1 ended with exit code 1: ValueError: the batch has 3 rows, not 4: see https://example.org/batches"
    assert f"{whole} (then KeyError: 'absent')" in result.reason


def test_what_a_script_printed_when_it_refused_to_start_is_shown(verify):
    refuse = "import torch\nprint('this script needs --data')\nraise SystemExit(3)\n"
    result = verify(script(DDP), refuse)
    assert result.code == 2
    assert "ended with exit code 3: this script needs --data, before training began" in result.reason


def test_a_save_that_fails_because_the_optimizer_came_first_says_so(verify):
    first = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1); " + FSDP2
    late = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
    save = "from torch.distributed.checkpoint.state_dict import get_state_dict; get_state_dict(model, optimizer)\n"
    result = verify(script(DDP), script(first, end=save + END).replace(late + "\nfor", "for"))
    assert result.code == 2
    assert "likely: the optimizer was built before fully_shard, which replaces the parameters" in result.reason


def test_resuming_that_was_asked_for_and_could_not_be_compared_is_not_judged(verify):
    result = verify(script(DDP), script(), "--resume", fresh=True)
    assert (result.code, result.document["verdict"]) == (2, "not judged")
    assert result.reason == "resume: the old run left no checkpoint to continue from"


def test_a_script_agrees_with_itself(verify, tmp_path: Path):
    result = verify(script(DDP), script(), "--old", "old.py", "--new", "old.py", fresh=True)
    assert (result.code, result.document["verdict"]) == (0, "equivalent")


def test_gradients_that_fully_shard_adds_up_in_another_order_are_shown_to_be_that(verify, tmp_path: Path):
    source = (Path(__file__).parent / "scripts" / "encoder_decoder.py").read_text()
    old, new, rate = (source.replace("Path(__file__).stem", repr(wrap)) for wrap in ("fsdp1", "fsdp2", "rate"))
    result = verify(old, new)
    assert (result.code, result.document["verdict"]) == (0, "equivalent")
    assert result.check("gradients")["outcome"] == "expected"
    assert "an old run with the same nodes agrees" in result.check("gradients")["reason"]
    assert verify(old, rate).code == 1


def test_a_rank_that_is_killed_as_for_lack_of_memory(verify):
    kill = "if step == 1 and rank == 1: os.kill(os.getpid(), 9)"
    result = verify(script(DDP), script(before=kill))
    assert result.code == 2
    assert "rank 1 was killed by SIGKILL, as the kernel does when memory runs out" in result.reason


def test_a_script_with_an_error_before_training(verify):
    result = verify(script(DDP), "import no_such_module\n")
    assert result.code == 2
    assert "No module named 'no_such_module'" in result.reason
    assert "before training began" in result.reason


def test_a_script_that_never_steps(verify):
    result = verify(script(DDP), script(steps=0))
    assert result.code == 2
    assert "the new side never stepped an optimizer" in result.reason


def test_a_script_that_does_not_train_at_all(verify):
    result = verify(script(DDP), "print('done')\n")
    assert result.code == 2
    assert "nothing was recorded" in result.reason


def test_another_number_of_steps(verify):
    result = verify(script(DDP, steps=3), script(steps=2))
    assert result.code == 1
    assert result.check("coverage")["reason"] == "the new side made 2 optimizer steps, the old one 3"
    assert result.check("coverage")["step"] == 2


def test_other_parameter_names(verify):
    renamed = "model = nn.Sequential(model); " + FSDP2
    result = verify(script(DDP), script(renamed))
    assert result.code == 1
    assert "no parameter has the same name on both sides (bias on the old one, 0.bias on the new)" in result.reason


def test_a_script_that_starts_its_own_ranks_against_one_for_torchrun(verify):
    main = """
    def main(rank, world):
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29617")
        dist.init_process_group("gloo", rank=rank, world_size=world)
    """
    body = textwrap.indent(TRAIN.format(wrap=DDP, steps=2, before="pass") + END, "    ")
    spawn = "\nif __name__ == '__main__':\n    import torch.multiprocessing as mp\n    mp.spawn(main, (2,), nprocs=2)\n"
    result = verify(COMMON + textwrap.dedent(main) + body + spawn, script())
    assert (result.code, result.document["verdict"]) == (0, "equivalent")
    assert result.document["runs"]["old"]["ranks"] == 2


def test_a_script_that_wants_a_local_rank_argument(verify):
    parse = """
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, required=True)
    arguments = parser.parse_args()
    assert arguments.local_rank == int(os.environ["LOCAL_RANK"])
    """
    result = verify(script(DDP, start=textwrap.dedent(parse) + START), script())
    assert result.code == 0


def test_a_module_in_two_directories(verify, tmp_path: Path):
    for name, text in (("before", script(DDP)), ("after", script())):
        package = tmp_path / name / "package"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "train.py").write_text(text)
    command = [sys.executable, "-m", "to_fsdp2.migrate", "verify", "--old", "before", "--new", "after"]
    finished = _run([*command, "--format", "json", "--", "-m", "package.train"], tmp_path, tmp_path, 240)
    assert finished.returncode == 0, finished.stderr


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a training script over two files, everything committed."""
    root = tmp_path / "repository"
    (root / "package").mkdir(parents=True)
    (root / "package" / "__init__.py").write_text("")
    (root / "package" / "wrapping.py").write_text(WRAPPING.format(body=f"{DDP}; return model"))
    (root / "train.py").write_text(script("from package.wrapping import wrap; model = wrap(model)"))
    git = ["git", "-c", "user.name=Test", "-c", "user.email=test@example.org"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *arguments], cwd=root, check=True)
    return root


WRAPPING = "from torch import nn\ndef wrap(model):\n    {body}\n"
HEAD = [sys.executable, "-m", "to_fsdp2.migrate", "verify", "--format", "json", "--", "train.py"]


def test_head_against_the_working_directory(repository: Path, tmp_path: Path):
    (repository / "package" / "wrapping.py").write_text(WRAPPING.format(body=f"{FSDP2}; return model"))
    result = Result(_run(HEAD, repository, tmp_path, 240))
    assert (result.code, result.document["verdict"]) == (0, "equivalent"), result.stderr
    assert "5 of 5 changed statements were executed" in result.check("coverage")["reason"]
    assert not list(repository.glob(".git/worktrees/*"))


def test_an_unchanged_repository_has_nothing_to_compare(repository: Path, tmp_path: Path):
    result = Result(_run(HEAD, repository, tmp_path, 60))
    assert result.code == 2
    assert "does not differ" in result.reason


def test_a_side_that_imports_the_working_directory_itself_is_not_judged(repository: Path, tmp_path: Path):
    train = repository / "train.py"
    train.write_text(f"import sys; sys.path.insert(0, {str(repository)!r})\n" + train.read_text())
    subprocess.run(["git", "-c", "user.name=T", "-c", "user.email=t@e.org", "commit", "-qam", "x"], cwd=repository, check=True)
    (repository / "package" / "wrapping.py").write_text(WRAPPING.format(body=f"{FSDP2}; return model"))
    result = Result(_run(HEAD, repository, tmp_path, 240))
    assert (result.code, result.document["verdict"]) == (2, "not judged")
    assert f"the old side imported package from {repository}" in result.reason


def test_a_missing_script_is_wrong_usage(tmp_path: Path):
    (tmp_path / "a").mkdir()
    command = [sys.executable, "-m", "to_fsdp2.migrate", "verify", "--old", "a", "--new", "a", "--", "missing.py"]
    finished = _run(command, tmp_path, tmp_path, 60)
    assert finished.returncode == 64
    assert "the old side" in finished.stderr
    assert "has no file missing.py" in finished.stderr


def test_an_abort_at_exit_after_all_work_is_not_a_failure(verify):
    abort = """
    import atexit
    def abort():
        sys.stderr.write("terminate called without an active exception\\n")
        sys.stderr.flush()
        os.abort()
    if rank == 1:
        import torch.distributed.elastic
        sys.exitfunc = abort
        import threading
        threading._shutdown = (lambda previous: lambda: (previous(), time.sleep(3)))(threading._shutdown)
        weak = type("AtExit", (), {"__del__": lambda self: abort()})()
        sys.modules["__main__"].keep = weak
    """
    result = verify(script(DDP), script(end=END + textwrap.dedent(abort)))
    assert result.code == 0, result.document.get("reason")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_the_command_ends_all_that_it_started(tmp_path: Path, number: signal.Signals):
    detached = "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True); time.sleep(1000)"
    for name in ("old.py", "new.py"):
        (tmp_path / name).write_text(script(before=detached) + f"# {name}\n")
    (tmp_path / "new.py").write_text(script(steps=3, before=detached))
    process = subprocess.Popen(
        COMMAND, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # off in a shell's background jobs
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 90
        while not _sleepers(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert _sleepers(tmp_path)
        process.send_signal(number)
        assert process.wait(30) == {signal.SIGKILL: -9}.get(number, 130)
    finally:
        process.kill()
    deadline = time.monotonic() + 10
    while left_over(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left_over(tmp_path) == []
    if number != signal.SIGKILL:
        assert list((tmp_path / "tmp").iterdir()) == []


def _sleepers(tmp_path: Path) -> list[int]:
    return [pid for pid in left_over(tmp_path) if b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()]
