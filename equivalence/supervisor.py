"""Runs one command and leaves no process behind: `python -I supervisor.py COMMAND…`.

It ends when the command ends, and ends the command when its standard input closes, which is what happens when the
process that started it exits for whatever reason, SIGKILL included. Either way it first kills everything that the
command started, also processes that moved to a session of their own or lost their parent: on Linux they become
children of the supervisor (prctl(2), PR_SET_CHILD_SUBREAPER). Standard library only; it runs as a script.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    child = None
    try:
        child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
        while child.poll() is None:
            closed, _, _ = select.select([0], [], [], 0.05)
            if closed and not os.read(0, 1):
                return 1
        return child.returncode if child.returncode >= 0 else 128 - child.returncode
    finally:
        end_descendants(child)


def end_descendants(child: subprocess.Popen[bytes] | None) -> None:
    """Kills until none is left; more than once, because a process may start another while it is being killed."""
    if sys.platform != "linux":
        if child is not None and child.poll() is None:
            child.kill()
        return
    while pids := descendants(os.getpid()):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG) == (0, 0):
                    break
            except ChildProcessError:
                break
        time.sleep(0.01)


def descendants(root: int) -> list[int]:
    """All processes below `root`, by the parent ids in /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The command's name, in parentheses, may itself hold spaces and parentheses.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    pending = [root]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


if __name__ == "__main__":
    sys.exit(main())
