"""Runs training programs on ranks that are forks of one process: `import torch` is paid once.

A server, started as `python -m benchmarks.metamorphic.ranks [MODULE…]`, with modules to import beforehand. It reads one
job a line (JSON) and answers one line. A rank finds what torchrun gives it (`RANK`, `MASTER_PORT`, …), the script's folder
at the head of `sys.path`, and a seed of its own that is the same in each run.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import pickle
import random
import runpy
import signal
import socket
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

PRELOADED = (
    "torch._dynamo",  # the first step of an optimizer imports it
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.multiprocessing.spawn",
    "torch.nn.parallel",
)
PR_SET_PDEATHSIG = 1  # linux/prctl.h
LAST_WORDS_SECONDS = 2.0
# Ranks that wait for each other take a thousandth of a processor, those that are kept waiting by a busy machine a hundredth.
STILL_SECONDS, STILL_SHARE = 20.0, 0.005
FIRST_SEED = 67280421310721


def serve() -> None:
    """Answers jobs until stdin ends.

    A job has `folder`, `script`, `args`, `nproc` (0: one process without what torchrun sets), `env`, `logs` (an empty
    folder) and `seconds`. The answer has `codes` (exit code of each rank, negative for a signal), `late` (whether it ran for
    longer, or stood still) and `seconds`.
    `logs` then holds `rank*.out`, `rank*.err` and `constructed`, the names of the old wrappers that were built.
    """
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    for name in (*PRELOADED, *sys.argv[1:]):
        importlib.import_module(name)
    torch.set_num_threads(1)
    note_constructors()
    keep_process_groups()
    gc.freeze()  # a collection would copy the pages of all that was imported
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), file=answers, flush=True)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Forks the ranks of a job and waits for them; one that fails takes the others with it, none is left behind."""
    begun = time.monotonic()
    deadline = begun + job["seconds"]
    port = free_port()
    group = 0
    running: dict[int, int] = {}
    for rank in range(max(1, job["nproc"])):
        pid = os.fork()
        if not pid:
            os.setpgid(0, group)
            be_rank(job, rank, port)
        group = group or pid
        os.setpgid(pid, group)
        running[pid] = rank
    codes: dict[int, int] = {}
    late = False
    looked, used = begun, 0.0
    while running:
        pid, status = os.waitpid(-group, os.WNOHANG)
        if pid:
            codes[running.pop(pid)] = code = os.waitstatus_to_exitcode(status)
            if code:
                # The first to fail is rarely the only one with something to say.
                deadline = min(deadline, time.monotonic() + LAST_WORDS_SECONDS)
        elif time.monotonic() > deadline:
            late = late or not any(codes.values())
            kill(group)
            deadline += 60
        elif time.monotonic() > looked + STILL_SECONDS:
            before, used, looked = used, processor_seconds(group), time.monotonic()
            # It is less than before where a process has ended in between.
            if 0 <= used - before < STILL_SHARE * STILL_SECONDS:
                deadline = looked
        else:
            time.sleep(0.005)
    kill(group)
    seconds = time.monotonic() - begun
    return {"codes": [codes[rank] for rank in sorted(codes)], "late": late, "seconds": round(seconds, 2)}


def kill(group: int) -> None:
    """Ends a job's processes, those that its ranks started too."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def processor_seconds(group: int) -> float:
    """What the living processes of a group have taken so far (https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html)."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name in front may hold blanks and brackets; behind it come state, parent and group, and later the ticks.
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def be_rank(job: dict[str, Any], rank: int, port: int) -> None:
    """Runs a job's script as the main program; never returns."""
    code = 1
    try:
        die_with_parent()
        redirect(Path(job["logs"]), rank)
        os.chdir(job["folder"])
        os.environ.update(job["env"])
        os.environ["CONSTRUCTED"] = str(Path(job["logs"]) / "constructed")
        if job["nproc"]:
            os.environ.update(launched(rank, job["nproc"], port))
        script = str(Path(job["folder"]) / job["script"])
        sys.argv = [job["script"], *job["args"]]
        sys.path[0] = str(Path(script).parent)
        sys.dont_write_bytecode = True
        spawn_by_forking(script)
        seed(rank)
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def redirect(logs: Path, rank: int) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, end in ((1, "out"), (2, "err")):
        os.dup2(os.open(logs / f"rank{rank}.{end}", os.O_WRONLY | os.O_CREAT), descriptor)


def launched(rank: int, world: int, port: int) -> dict[str, str]:
    """The environment that torchrun gives a rank on one node
    (https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables)."""
    same_everywhere = {
        "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": world, "WORLD_SIZE": world, "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
    }  # fmt: skip
    environment = same_everywhere | dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), rank)
    return {name: str(value) for name, value in environment.items()}


def seed(rank: int) -> None:
    """Every new process draws other random numbers than its neighbours; here they are the same in each run."""
    import torch

    torch.manual_seed(FIRST_SEED + rank)
    random.seed(FIRST_SEED + rank)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def die_with_parent() -> None:
    """A killed benchmark leaves no process behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def note_constructors() -> None:
    """Lets the constructors of FSDP1 and DDP write their names into the file that `CONSTRUCTED` names."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.nn.parallel import DistributedDataParallel

    def noting(name: str, construct: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(construct)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
            with open(os.environ["CONSTRUCTED"], "a") as file:
                file.write(f"{name}\n")
            construct(self, *args, **kwargs)

        return wrapper

    for wrapped in (FullyShardedDataParallel, DistributedDataParallel):
        wrapped.__init__ = noting(wrapped.__name__, wrapped.__init__)


def keep_process_groups() -> None:
    """Lets process groups live until the process ends.

    The destructor of one that belongs to a DDP model joins gloo's thread while it holds the lock of the interpreter, which the
    thread at times waits for (torch 2.13: ~ProcessGroupGloo in ~Reducer, ~AsyncWork in runLoop).
    """
    from torch.distributed import distributed_c10d

    construct = distributed_c10d._new_process_group_helper

    @functools.wraps(construct)
    def keeping(*args: Any, **kwargs: Any) -> Any:
        kept.append(construct(*args, **kwargs))
        return kept[-1]

    kept: list[Any] = []
    distributed_c10d._new_process_group_helper = keeping


def spawn_by_forking(script: str) -> None:
    """Replaces `torch.multiprocessing.spawn` by one that forks, and then does what a spawned process does.

    The process imports the program anew, with its script as `__mp_main__`, and gets its arguments through pickle.
    """
    import torch.multiprocessing
    from torch.multiprocessing.spawn import start_processes

    def spawn(
        fn: Any, args: tuple[Any, ...] = (), nprocs: int = 1, join: bool = True, daemon: bool = False,
        start_method: str = "spawn",
    ) -> Any:  # fmt: skip
        assert start_method == "spawn", start_method
        passed = (bytes(ForkingPickler.dumps((fn, args))), script)
        return start_processes(be_spawned, passed, nprocs, join, daemon, start_method="fork")

    torch.multiprocessing.spawn = spawn  # pyright: ignore[reportPrivateImportUsage]
    sys.modules["torch.multiprocessing.spawn"].spawn = spawn  # pyright: ignore[reportAttributeAccessIssue]


def be_spawned(index: int, pickled: bytes, script: str) -> None:
    """What a process that `torch.multiprocessing.spawn` started does."""
    folder = os.path.dirname(script)
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(folder):
            del sys.modules[name]
    seed(index)
    main = types.ModuleType("__mp_main__")
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    vars(main).update(runpy.run_path(script, run_name="__mp_main__"))
    fn, args = pickle.loads(pickled)
    fn(index, *args)


if __name__ == "__main__":
    serve()
