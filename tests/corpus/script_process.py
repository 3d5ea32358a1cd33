"""A script as the main program of a rank: `python script_process.py FOLDER SCRIPT ARGS…`, or called in a forked process."""

from __future__ import annotations

import os
import runpy
import signal
import sys

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

TIMEOUT_SECONDS = int(os.environ.get("SCRIPT_SECONDS", "25"))


def execute_script(folder: str, script: str, args: tuple[str, ...]) -> None:
    """Executes a script as the main program of this process; a hung one is ended by a signal."""
    signal.alarm(TIMEOUT_SECONDS)
    os.chdir(folder)
    sys.argv = [script, *args]
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    torch.set_num_threads(1)
    keep_groups()
    runpy.run_path(script, run_name="__main__")
    sys.stdout.flush()


def keep_groups() -> None:
    """No process group of this process is taken down before the process ends.

    DDP's reducer holds its group beyond `destroy_process_group`. When it goes, the group waits for gloo's threads
    under the interpreter's lock, and one of them may wait for that lock to drop a tensor (torch 2.13): the rank then
    hangs, or aborts at exit, after all work is done.
    """
    kept: list[object] = []
    destroy = c10d.destroy_process_group

    def destroyed(group: dist.ProcessGroup | None = None) -> None:
        kept.extend(c10d._world.pg_map)
        destroy(group)

    c10d.destroy_process_group = dist.destroy_process_group = destroyed


if __name__ == "__main__":
    execute_script(sys.argv[1], sys.argv[2], tuple(sys.argv[3:]))
    sys.stderr.flush()
    os._exit(0)  # the interpreter's end would take the kept groups down
