"""Many recorded runs from one process: `import torch` is paid once, every rank is a fork of it.

Run as a script: `python forked_runs.py JOBS.json`, or with `-` for one job a line from stdin, each answered by a line when it
is over. A job starts `world` processes of its script, in its folder,
that talk over gloo, with the recorder installed as it is in a process that torchrun started; two jobs run at a time.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

AT_A_TIME = 2
SECONDS = 120


def main() -> None:
    import to_fsdp2.equivalence

    # What the forks share. The scripts would import it, or torch on its first use of a sharded tensor.
    import torch._dynamo
    import torch.distributed.algorithms._checkpoint.checkpoint_wrapper
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.fsdp
    import torch.distributed.tensor  # noqa: F401

    inject = Path(to_fsdp2.equivalence.__path__[0]) / "inject"
    sys.path.insert(0, str(inject))
    if sys.argv[1] != "-":
        run(json.loads(Path(sys.argv[1]).read_text()))
        return
    for line in sys.stdin:
        run([json.loads(line)])
        print("done", flush=True)


def run(jobs: list[dict[str, Any]]) -> None:
    """Runs them all, a few at a time."""
    running: dict[int, dict[str, Any]] = {}
    while jobs or running:
        while jobs and len({job["name"] for job in running.values()}) < AT_A_TIME:
            job = jobs.pop(0)
            job.update(port=free_port(), deadline=time.monotonic() + SECONDS)
            for rank in range(job["world"]):
                running[start(job, rank)] = job
        reap(running)
        time.sleep(0.005)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def start(job: dict[str, Any], rank: int) -> int:
    """Forks one rank; its exit code goes to `rank{r}.exit` in the record's directory."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = work(job, rank)
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def work(job: dict[str, Any], rank: int) -> int:
    record = Path(job["record"])
    record.mkdir(parents=True, exist_ok=True)
    output = os.open(record / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(job["folder"])
    sys.path.insert(0, str(Path(job["script"]).parent))
    world = str(job["world"])
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=world, LOCAL_WORLD_SIZE=world, MASTER_ADDR="localhost",
        MASTER_PORT=str(job["port"]), TO_FSDP2_RECORD=str(record), TO_FSDP2_MODE="exact", TO_FSDP2_ROOT=job["folder"],
        TO_FSDP2_RECORD_LEVEL="full", TO_FSDP2_TRIPWIRES="1",
    )  # fmt: skip
    os.environ.update(job.get("variables", {}))
    from _to_fsdp2_recorder import install  # pyright: ignore[reportMissingImports]

    install()
    sys.argv = [job["script"], *job["arguments"]]
    try:
        runpy.run_path(job["script"], run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def reap(running: dict[int, dict[str, Any]]) -> None:
    """Notes ranks that have ended; one that failed, or took too long, takes the other ranks of its job with it."""
    for pid, job in list(running.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        late = time.monotonic() > job["deadline"]
        if not ended and not late:
            continue
        del running[pid]
        if late or os.waitstatus_to_exitcode(status):
            # The others are given a moment: the first to fail is rarely the only one with something to say.
            job["deadline"] = min(job["deadline"], time.monotonic() + 2)
            (Path(job["record"]) / "failed").write_text("late" if late else str(os.waitstatus_to_exitcode(status)))
        if not ended:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
