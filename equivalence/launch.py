"""Starts the recorded runs: the command for the launcher, the environment, and the wait until the run is over."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from . import ended
from .options import UsageError, VerifyOptions
from .python_path import python_path
from .script_needs import Needs, module_file, read_needs
from .sides import Place
from .waiting import describe_waiting, dump_stacks

INJECT = Path(__file__).parent / "inject"
SUPERVISOR = Path(__file__).parent / "supervisor.py"
STEP_EVENT = re.compile(rb'"event":\s*"step"')
POLL_SECONDS = 0.1
UNEVEN, UNEVEN_SECONDS = "uneven", 30.0
"""Ranks that do not make the same calls (the recorder leaves a file of this name) are not waited for any longer."""

# Ranks started by one shell line each, so that every rank gets its own --local_rank.
PASS_LOCAL_RANK = 'script=$1; flag=$2; shift 2; exec "$0" -u "$script" "$flag=$LOCAL_RANK" "$@"'
PASS_LOCAL_RANK_MODULE = 'module=$1; flag=$2; shift 2; exec "$0" -u -m "$module" "$flag=$LOCAL_RANK" "$@"'


@dataclass
class Launch:
    """One run to be started: `record` is where the ranks write, `logs` where their output goes."""

    name: str
    command: list[str]
    place: Place
    record: Path
    logs: Path
    environment: dict[str, str] = field(default_factory=dict)
    """What is set on top of the environment of the caller."""


@dataclass
class Finished:
    """How a run ended. `hung` says what every rank was doing when the time was up. `lingered`: all ranks had come to their
    end, and did not leave."""

    exit_code: int
    seconds: float
    hung: str | None = None
    lingered: bool = False


def script_of(command: list[str], place: Place) -> tuple[list[str], list[str]]:
    """Splits what follows `--` into the program (`[script]` or `["-m", module]`) and its arguments."""
    if place.script is not None:
        return [place.script], command
    if not command:
        raise UsageError("nothing to run: put the script and its arguments after --")
    if command[0] == "-m":
        if len(command) == 1:
            raise UsageError("-m needs the name of a module")
        return command[:2], command[2:]
    return command[:1], command[1:]


def script_file(program: list[str], place: Place) -> Path:
    """The source file of the program on one side. UsageError if the side has none."""
    if program[0] != "-m":
        path = place.root / program[0]
        if not path.is_file():
            raise UsageError(f"the {place.side} side ({place.origin}) has no file {program[0]}")
        return path
    roots = (place.root, place.root / "src")
    path = module_file(f"{program[1]}.__main__", roots) or module_file(program[1], roots)
    if path is None:
        raise UsageError(f"the {place.side} side ({place.origin}) has no module {program[1]} of its own")
    return path


def needs_of(command: list[str], place: Place) -> Needs:
    program, _ = script_of(command, place)
    return read_needs(script_file(program, place), place.top)


def launcher_command(options: VerifyOptions, place: Place, needs: Needs, logs: Path, extra: list[str]) -> list[str]:
    """The command line that starts all ranks of this machine."""
    program, arguments = script_of(options.command, place)
    arguments = [*arguments, *extra]
    if options.launcher == "python" or (options.launcher == "auto" and needs.spawns):
        return [sys.executable, "-u", *program, *arguments]
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={options.nproc}"]
    if options.rdzv_endpoint is None and options.nnodes == "1":
        torchrun += ["--standalone"]
    else:
        endpoint = [] if options.rdzv_endpoint is None else [f"--rdzv-endpoint={options.rdzv_endpoint}"]
        torchrun += [f"--nnodes={options.nnodes}", "--rdzv-backend=c10d", "--rdzv-id=to-fsdp2", *endpoint]
        torchrun += [] if options.node_rank is None else [f"--node-rank={options.node_rank}"]
    torchrun += [f"--log-dir={logs}", "--redirects=3", "--max-restarts=0"]
    if needs.local_rank_flag is None:
        return [*torchrun, *program, *arguments]
    line = PASS_LOCAL_RANK_MODULE if program[0] == "-m" else PASS_LOCAL_RANK
    shell = ["/bin/sh", "-c", line, sys.executable, program[-1], needs.local_rank_flag]
    return [*torchrun, "--no-python", *shell, *arguments]


def environment_of(launch: Launch, temporary: Path) -> dict[str, str]:
    """The whole environment of a run: the caller's, the recorder first on PYTHONPATH, what the launch adds."""
    inherited = TORCHRUN_VARIABLES if "RANK" in os.environ else frozenset()
    environment = {name: value for name, value in os.environ.items() if name not in inherited}
    # The default of torchrun, made the same for scripts that start their own ranks: thread counts change sums.
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment.setdefault("PYTHONHASHSEED", "0")
    # MKL's kernels round by how their operands are aligned, which gathered parameters and DDP's are not alike.
    environment.setdefault("MKL_CBWR", "AUTO,STRICT")
    environment["TMPDIR"] = str(temporary)
    environment["TO_FSDP2_RECORD"] = str(launch.record)
    environment["TO_FSDP2_ROOT"] = str(launch.place.top)
    environment["PYTHONPATH"] = os.pathsep.join([str(INJECT), *python_path(launch.place)])
    return {**environment, **launch.environment}


TORCHRUN_VARIABLES = frozenset(
    ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
)
"""Left over where verify itself runs under a launcher, they would make a spawning script believe it is a rank."""


def run(launch: Launch, timeout: float, temporary: Path, progress: Callable[[int], None]) -> Finished:
    """Runs to the end, or for `timeout` seconds. Nothing that it started is alive when it returns or raises.

    `progress` is called with the number of optimizer steps that the first rank has recorded so far.
    """
    for directory in (launch.record, launch.logs, temporary):
        directory.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with open(launch.logs / "launcher.log", "wb") as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-I", str(SUPERVISOR), *launch.command],
            cwd=launch.place.root, env=environment_of(launch, temporary), start_new_session=True,
            stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    hung, lingered = None, False
    done, since, longest = 0, started, 0.0
    counter = StepCounter(launch.record)
    try:
        while supervisor.poll() is None:
            if time.monotonic() - started > timeout:
                dump_stacks(launch.record)
                hung = describe_waiting(launch.record, launch.place.top)
                break
            steps = counter.steps()
            if steps != done:
                longest = max(longest, time.monotonic() - since)
                done, since = steps, time.monotonic()
            elif (launch.record / UNEVEN).exists() and time.monotonic() - since > max(UNEVEN_SECONDS, 3 * longest):
                dump_stacks(launch.record)
                hung = describe_waiting(launch.record, launch.place.top)
                break
            elif time.monotonic() - since > ended.LINGERING_SECONDS:
                at = ended.ended_at(launch.record)
                lingered = at is not None and time.time() - at > ended.LINGERING_SECONDS
                if lingered:
                    break
            progress(steps)
            time.sleep(POLL_SECONDS)
    finally:
        assert supervisor.stdin is not None
        supervisor.stdin.close()
        _wait(supervisor)
    return Finished(supervisor.returncode, time.monotonic() - started, hung, lingered)


def _wait(supervisor: subprocess.Popen[bytes]) -> None:
    # An impatient second Ctrl-C must not leave the ranks running.
    while supervisor.poll() is None:
        try:
            supervisor.wait()
        except KeyboardInterrupt:
            continue


class StepCounter:
    """Counts the steps in a record that is still being written, reading each byte once."""

    def __init__(self, record: Path) -> None:
        self.path = record / "rank0.jsonl"
        self.offset = 0
        self.count = 0

    def steps(self) -> int:
        if self.path.exists():
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self.offset += len(whole)
            self.count += len(STEP_EVENT.findall(whole))
        return self.count


def end_by_signal() -> None:
    """Turns SIGTERM and SIGHUP into KeyboardInterrupt, so that they clean up as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
