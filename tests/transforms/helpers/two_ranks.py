"""Runs each `check_…` function of a file on two ranks over gloo: `torch` is imported once, each pair of ranks is forked.

Tests ask `names(file)` and `outcome(file, name)`; the second runs the whole file the first time it is asked.
A check passes if it returns on both ranks.
"""

from __future__ import annotations

import ast
import faulthandler
import functools
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).parent
SECONDS = 60  # for one check
ENDED_BY_SIGNAL = "ended by signal "


def names(file: str) -> list[str]:
    functions = [node for node in ast.parse((FOLDER / file).read_text()).body if isinstance(node, ast.FunctionDef)]
    return [function.name for function in functions if function.name.startswith("check_")]


def outcome(file: str, name: str) -> str:
    return _outcomes(file)[name]


@functools.cache
def _outcomes(file: str) -> dict[str, str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", __file__, file]
    ran = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1])


def main(file: str, only: list[str]) -> None:
    checks = importlib.import_module(file.removesuffix(".py"))
    print(json.dumps({name: run(getattr(checks, name)) for name in only or names(file)}))


def run(check: Callable[[], None]) -> str:
    """'passed', or what the ranks raised.

    A rank that a signal ended gets a second try: torch 2.13 over gloo faulted so twice in some thousands of checks.
    """
    said = _run_once(check)
    return _run_once(check) if ENDED_BY_SIGNAL in said else said


def _run_once(check: Callable[[], None]) -> str:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    pipes = [os.pipe() for _ in range(2)]
    ranks = [fork(check, rank, port, pipes[rank][1]) for rank in range(2)]
    deadline = time.monotonic() + SECONDS
    waiting = dict(enumerate(ranks))
    ends: dict[int, int] = {}
    while waiting and time.monotonic() < deadline:
        for rank, pid in list(waiting.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del waiting[rank]
                ends[rank] = os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    for pid in waiting.values():
        os.kill(pid, signal.SIGUSR1)  # each says where it stands before one of them goes
    time.sleep(1 if waiting else 0)
    for pid in waiting.values():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    said = []
    for rank, (end, other) in enumerate(pipes):
        os.close(other)
        with os.fdopen(end) as stream:
            text = stream.read() or "nothing"
        if rank in waiting:
            text = f"did not end in {SECONDS} s: {text}"
        elif ends[rank]:
            text = f"{ENDED_BY_SIGNAL}{-ends[rank]}: {text}"
        said += [f"rank {rank}: {text}"] if text != "passed" else []
    return "\n".join(said) or "passed"


def fork(check: Callable[[], None], rank: int, port: int, answer: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    import torch.distributed as dist

    text = "passed"
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR="localhost", MASTER_PORT=str(port))
    faulthandler.enable(answer)
    faulthandler.register(signal.SIGUSR1, answer, all_threads=True)
    try:
        dist.init_process_group("gloo")
        check()
        dist.barrier()
    except BaseException:
        text = traceback.format_exc(limit=-6)
    os.write(answer, text[-3500:].encode())
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
